/*
 * Writes after the death of their process, as a GPU does them while a forked child of the dead
 * process keeps the driver's descriptors open.
 *
 * With CABLEWAY_FAKECUDA_LATE_MS=N a second process is made with the first stream. It shares the
 * memory of the first one but is no thread of it, and waits for its death on a pidfd. When that
 * comes it does what the streams still had, write by write, fill by fill and copy by copy, N ms
 * before each, and ends. It waits for words as the streams would, half a second in all: whoever
 * reads what the dead process was to write next has its order with it still. Nothing behind a word
 * that does not come, a kernel, a host function or other streams' work is done. A normal exit
 * counts as a death. Descriptors: it closes all (so sockets of the dead process are at their end,
 * as they would be), unless CABLEWAY_FAKECUDA_LATE_KEEPS=1 says that it lives on like a forked
 * child that has them.
 *
 * Invariant: a stream's current names its first work that is not done, and next leads on; the
 * threads set both by single stores and free a work only after current has left it. So at every
 * moment of a death the list can be read, and at most one work is done a second time.
 * The second process calls nothing but the kernel: locks and thread-local storage are the dead
 * one's. It is a child that plain wait calls do not see.
 */
#ifndef CW_TESTS_FAKECUDA_STREAMS_LATE_H
#define CW_TESTS_FAKECUDA_STREAMS_LATE_H

struct fake_stream;

/* Under fake_mutex. */
void fake_late_watch(struct fake_stream *stream);
void fake_late_forget(struct fake_stream *stream);

#endif
