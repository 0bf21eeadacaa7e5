/*
 * What `cableway doctor` asks. See doctor.c.
 */
#ifndef CW_BROKER_BRIDGE_CLI_DOCTOR_H
#define CW_BROKER_BRIDGE_CLI_DOCTOR_H

/* Prints JSON. running: the pid of the broker's bridge, and what it says of its peers is told, too;
 * 0: none runs. The exit code (command.h). */
int cwb_command_doctor(int running);

#endif
