/*
 * What the commands of people have in common. Each returns the program's exit code (cableway --help
 * lists them) and prints what is to be printed.
 */
#ifndef CW_BROKER_BRIDGE_CLI_COMMAND_H
#define CW_BROKER_BRIDGE_CLI_COMMAND_H

enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_WRONG = 2,
    EXIT_NO_BROKER = 3,
    EXIT_NO_PEER = 4,
    EXIT_LATE = 5
};

/* cw_error() to standard error. Returns exit_code. */
int cwb_complain(int exit_code);

#endif
