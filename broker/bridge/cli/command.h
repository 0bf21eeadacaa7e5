/*
 * What people call: `cableway keygen` and `cableway peers`. Each returns the program's exit code
 * (cableway --help lists them) and prints what is to be printed.
 */
#ifndef CW_BROKER_BRIDGE_CLI_COMMAND_H
#define CW_BROKER_BRIDGE_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_WRONG = 2,
    EXIT_NO_BROKER = 3,
    EXIT_NO_PEER = 4,
    EXIT_LATE = 5
};

int cwb_command_keygen(int argc, char **argv);
int cwb_command_peers(int argc, char **argv);
/* peers list [--json], peers show [NAME] */
int cwb_command_list(int argc, char **argv);
/* peers wait [NAME] [--timeout SECONDS] */
int cwb_command_wait(int argc, char **argv);
/* What `cableway doctor` asks: JSON. running: also what the bridge that runs says of its peers. */
int cwb_command_doctor(int running); /* the pid of the broker's bridge; 0: none runs */
/* list.c: the value of a key in what the bridge tells of a peer; false: it has none. */
bool cwb_text_value(const char *text, const char *key, char *value, size_t room);
/* peers from-slurm */
int cwb_command_slurm(int argc, char **argv);
/* cw_error() to standard error. Returns exit_code. */
int cwb_complain(int exit_code);

#endif
