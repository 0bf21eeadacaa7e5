/*
 * Descriptors above standard input, output and error. If a program is started with one of these
 * closed, the next descriptor that it makes takes that number. Everything that the program prints
 * would then go there: into a socket, or into memory that others read.
 */
#ifndef CW_SHM_BASE_FD_H
#define CW_SHM_BASE_FD_H

/* The same open file at a descriptor from 3 on, closed at exec; fd is closed if that is another
 * one. A negative fd, or a failure (errno as fcntl's), is -1, and nothing is left open. */
int cw_fd_above_stdio(int fd);

#endif
