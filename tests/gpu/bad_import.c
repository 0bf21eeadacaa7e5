/*
 * Descriptors that are no slab: what a process of the same user can hand to the broker as memory of
 * a GPU, and who opens it is told, maps nothing and goes on. On the test double, or on real GPUs
 * with CABLEWAY_TEST_GPU=1.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/cuda/backend.h"
#include "shm/blocks/block.h"
#include "tests/gpu/cuda.h"

#define SLAB_BYTES (2ull << 20)

static void refused(int fd, uint64_t size_bytes, uint32_t flags, const char *words,
                    const char *what) {
    struct cw_mapping mapping = {.base = NULL};
    int code = cw_backend_cuda.slab_map(0, fd, size_bytes, flags, 0, &mapping);
    if (code >= 0 || mapping.base)
        test_fail("%s was taken for memory of a GPU", what);
    if (!strstr(cw_error(), words))
        test_fail("%s: \"%s\" does not say \"%s\"", what, cw_error(), words);
}

/* A ticket (import.c) that its owner has written as it likes. */
static int write_ticket(const void *bytes, size_t count) {
    int fd = memfd_create("ticket", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, count) != (ssize_t)count)
        test_fail("writing a ticket: %m");
    return fd;
}

static void borrowed(void) {
    struct {
        uint64_t magic, process, address, size_bytes;
        CUipcMemHandle handle;
    } ticket = {0x31746b636974776cull, 7, 4096, SLAB_BYTES, {{0}}};
    int fd = write_ticket(&ticket, 16);
    refused(fd, SLAB_BYTES, CW_SLAB_FOREIGN, "no ticket", "half a ticket");
    close(fd);
    fd = write_ticket(&ticket, sizeof ticket);
    refused(fd, 2 * SLAB_BYTES, CW_SLAB_FOREIGN, "no ticket", "a ticket of another size");
    refused(fd, SLAB_BYTES, CW_SLAB_FOREIGN, "opening borrowed memory", "a handle of zeros");
    close(fd);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    refused(fd, SLAB_BYTES, CW_SLAB_FOREIGN, "no ticket", "/dev/null as a ticket");
    close(fd);
}

static void slabs(void) {
    struct cw_mapping mapping;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC), pair[2], memory, slab;
    refused(fd, SLAB_BYTES, 0, "none of GPU memory", "/dev/null");
    close(fd);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        test_fail("socketpair: %m");
    refused(pair[0], SLAB_BYTES, 0, "none of GPU memory", "a socket");
    close(pair[0]);
    close(pair[1]);
    memory = memfd_create("slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0 || ftruncate(memory, SLAB_BYTES) < 0)
        test_fail("memfd_create: %m");
    refused(memory, SLAB_BYTES, 0, "none of GPU memory", "host memory");
    close(memory);
    if (cw_backend_cuda.slab_create(0, SLAB_BYTES, &slab) < 0)
        test_fail("a slab could not be made: %s", cw_error());
    refused(slab, 2 * SLAB_BYTES, 0, "mapping", "a slab that is smaller than was said");
    refused(slab, SLAB_BYTES - 4096, 0, "multiples", "a slab of an odd size");
    if (cw_backend_cuda.slab_map(0, slab, SLAB_BYTES, 0, 0, &mapping) < 0)
        test_fail("a good slab is refused after bad ones: %s", cw_error());
    cw_backend_cuda.slab_unmap(&mapping);
    close(slab);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/cableway-import-XXXXXX", command[96];
    (void)argc;
    if (!mkdtemp(folder))
        test_fail("mkdtemp: %m");
    test_cuda_choose(argv[0], folder);
    slabs();
    borrowed();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        test_fail("%s failed", command);
    printf("bad_import: %s: what is no slab was refused\n",
           test_cuda_is_real() ? "on a real GPU" : "on the test double");
    return 0;
}
