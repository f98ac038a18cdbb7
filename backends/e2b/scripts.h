/* What of ours runs inside a sandbox, in perl, which every Debian has: all *.pl here, embedded at build time. */
#ifndef SG_E2B_SCRIPTS_H
#define SG_E2B_SCRIPTS_H

extern const char e2b_script_wrap[];
extern const char e2b_script_terminal[];
extern const char e2b_script_kill[];
extern const char e2b_script_common[];
extern const char e2b_script_files[];
extern const char e2b_script_tree[];

#endif
