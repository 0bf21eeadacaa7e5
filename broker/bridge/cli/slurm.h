/*
 * cableway peers from-slurm. See slurm.c.
 */
#ifndef CW_BROKER_BRIDGE_CLI_SLURM_H
#define CW_BROKER_BRIDGE_CLI_SLURM_H

/* The exit code (command.h). */
int cwb_command_slurm(int argc, char **argv);

#endif
