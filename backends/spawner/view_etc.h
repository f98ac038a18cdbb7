/* The generated /etc of sandboxes: nothing in it tells of the host but public system data. */
#ifndef SG_VIEW_ETC_H
#define SG_VIEW_ETC_H

#include "base/error.h"

/* Fills the empty directory dir. host_data: also copies what programs in the host's /usr look for
 * (alternatives, certificates, the loader's cache); never accounts, keys or settings of the host. */
int sg_view_etc_make(const char *dir, bool host_data, struct sg_error *err);

#endif
