/* The archive library converts names by the thread's locale: a UTF-8 one around each call keeps text as text, and what is no text as
 * its bytes. */
#ifndef SG_TAR_LOCALE_H
#define SG_TAR_LOCALE_H

#include <locale.h>

/* (locale_t)0 when the system has none: names then travel as bytes. */
static inline locale_t sg_tar_locale_new(void)
{
    return newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

static inline locale_t sg_tar_locale_enter(locale_t l)
{
    return l != (locale_t)0 ? uselocale(l) : (locale_t)0;
}

static inline void sg_tar_locale_leave(locale_t old)
{
    if (old != (locale_t)0)
        (void)uselocale(old);
}

static inline void sg_tar_locale_free(locale_t l)
{
    if (l != (locale_t)0)
        freelocale(l);
}

#endif
