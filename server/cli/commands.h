/* The subcommands; each returns an exit code. */
#ifndef SG_CLI_COMMANDS_H
#define SG_CLI_COMMANDS_H

#include "cli/cli.h"

/* All of them, in the order of the help; ends with a NULL name. */
extern const struct sg_cli_command sg_cli_commands[];

/* Here, without a server. */
int sg_cli_serve(const struct sg_cli_args *a);
int sg_cli_check_config(const struct sg_cli_args *a);
int sg_cli_version(const struct sg_cli_args *a);
int sg_cli_select(const struct sg_cli_args *a);
int sg_cli_receipt_verify(const struct sg_cli_args *a);
int sg_cli_audit_verify(const struct sg_cli_args *a);

/* Of a running server. */
int sg_cli_status(const struct sg_cli_args *a);
int sg_cli_slots_status(const struct sg_cli_args *a);
int sg_cli_slots_change(const struct sg_cli_args *a); /* drain, undrain, recycle */
int sg_cli_slots_log(const struct sg_cli_args *a);
int sg_cli_pool_ls(const struct sg_cli_args *a);
int sg_cli_pool_show(const struct sg_cli_args *a);
int sg_cli_lease_ls(const struct sg_cli_args *a);
int sg_cli_lease_show(const struct sg_cli_args *a);
int sg_cli_lease_rm(const struct sg_cli_args *a);

#endif
