/*
 * Descriptors above standard input, output and error. Where a program was started with one of these
 * closed, the next descriptor that is made becomes it, and whatever that program prints goes there:
 * into a socket, or into memory that others read.
 */
#ifndef CW_SHM_BASE_FD_H
#define CW_SHM_BASE_FD_H

/* The same open file at a descriptor from 3 on, closed at exec; fd is closed where that is another.
 * A negative fd, or a failure (errno as fcntl's), is -1, and nothing is left open. */
int cw_fd_above_stdio(int fd);

#endif
