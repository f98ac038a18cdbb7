#include "http/layout.h"

#if MHD_VERSION < 0x01000000

static const char *after_line(const char *end)
{
    return end + 2;
}

void sg_layout_begin(struct sg_layout *l, const char *target, size_t len, const char *version)
{
    l->sound = !target || version == target + len + 1;
    l->next = after_line(version + strlen(version));
}

void sg_layout_header(struct sg_layout *l, const char *name, const char *value, size_t value_len)
{
    if (name != l->next)
        l->sound = false;
    l->next = after_line(value + value_len);
}

bool sg_layout_end(struct sg_layout *l, struct MHD_Connection *mhd, const char *method)
{
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return l->sound && (!size || after_line(l->next) == method + size->header_size);
}

#else

void sg_layout_begin(struct sg_layout *l, const char *target, size_t len, const char *version)
{
    (void)target;
    (void)len;
    (void)version;
    l->next = NULL;
    l->sound = true;
}

void sg_layout_header(struct sg_layout *l, const char *name, const char *value, size_t value_len)
{
    (void)l;
    (void)name;
    (void)value;
    (void)value_len;
}

bool sg_layout_end(struct sg_layout *l, struct MHD_Connection *mhd, const char *method)
{
    (void)mhd;
    (void)method;
    return l->sound;
}

#endif
