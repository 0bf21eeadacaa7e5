/*
 * The first sight of a GPU slab: what is spent on the descriptor's journey from the broker, on
 * mapping it, and beside that by the driver's own calls alone. `make bench-gpu` runs it.
 *
 *   bench_import [SLABS [MIB]]
 *
 * Another process makes the slabs. Half of them are mapped by the library's backend, half by the
 * bare calls, in turns, so that both meet the same state of the driver; then as many by cw_get().
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "shm/base/wait.h"
#include "tests/gpu/bench_ok.h"

#define SLABS_MAX 64

struct board {
    _Alignas(64) struct cw_fence made, done;
};
static struct board *board;

static const char *name_of(int i) {
    static char name[32];
    snprintf(name, sizeof name, "bench/import/%d", i);
    return name;
}

static void make_slabs(int count, int64_t bytes) {
    cw_client *client;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &bytes, .dtype = "|u1"};
    OK(cw_connect(NULL, NULL, 0, &client));
    for (int i = 0; i < count; i++) {
        cw_array *array;
        OK(cw_array_new(client, "cuda:0", &layout, 0, &array));
        OK(cw_array_put(array, name_of(i), CW_REPLACE, NULL, 0));
    }
    cw_fence_complete(&board->made, 1);
    OK(cw_fence_wait(&board->done, 1, -1));
    _exit(0);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median without the first, which is slower. */
static double median_us(double *times, int count) {
    qsort(times + 1, (size_t)count - 1, sizeof *times, by_value);
    return times[1 + (count - 1) / 2];
}

static void map_bare(const struct cw_gpu *gpu, int fd, uint64_t bytes) {
    const struct cw_cuda *cuda = gpu->cuda;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuda->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuda->cuMemAddressReserve(&base, bytes, 0, 0, 0));
    OK(cuda->cuMemMap(base, bytes, 0, handle, 0));
    OK(cuda->cuMemSetAccess(base, bytes, &access, 1));
    OK(cuda->cuMemRelease(handle));
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 12, status;
    int64_t bytes = (argc > 2 ? atoll(argv[2]) : 300) << 20;
    double journey[SLABS_MAX], ours[SLABS_MAX], bare[SLABS_MAX], whole[SLABS_MAX];
    if (count < 2 || count > SLABS_MAX || bytes <= 0)
        fail("SLABS is 2 to 64, MIB at least 1", 0);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t maker = fork();
    if (maker == 0)
        make_slabs(3 * count, bytes);
    cw_client *client;
    struct cw_gpu *gpu;
    OK(cw_connect(NULL, NULL, 0, &client));
    OK(cw_gpu_get(0, &gpu));
    OK(cw_fence_wait(&board->made, 1, 60000000000));
    for (int i = 0; i < 2 * count; i++) {
        cw_name_info info;
        struct cw_slab_info slab;
        struct cw_mapping mapping;
        struct cw_fds fds = {.count = 2};
        OK(cw_name_stat(client, name_of(i), &info));
        struct cw_slab_request request = {.slab = info.slab};
        int64_t begun_ns = cw_now_ns();
        OK(cw_socket_call(client, CW_OP_SLAB_OPEN, &request, sizeof request, NULL, &slab,
                          sizeof slab, &fds));
        int64_t came_ns = cw_now_ns();
        if (i % 2)
            map_bare(gpu, fds.fd[0], slab.size_bytes);
        else
            OK(cw_backend_cuda.slab_map(0, fds.fd[0], slab.size_bytes, slab.flags, false,
                                        &mapping));
        (i % 2 ? bare : ours)[i / 2] = (double)(cw_now_ns() - came_ns) / 1e3;
        journey[i / 2] = (double)(came_ns - begun_ns) / 1e3;
        cw_fds_close(&fds);
    }
    for (int i = 0; i < count; i++) {
        cw_array *array;
        int64_t begun_ns = cw_now_ns();
        OK(cw_get(client, name_of(2 * count + i), 0, &array));
        whole[i] = (double)(cw_now_ns() - begun_ns) / 1e3;
    }
    for (int i = 0; i < 3 * count; i++)
        OK(cw_remove(client, name_of(i)));
    cw_fence_complete(&board->done, 1);
    waitpid(maker, &status, 0);
    double ours_us = median_us(ours, count), bare_us = median_us(bare, count);
    printf("first sight of a slab of %lld MiB:\n", (long long)(bytes >> 20));
    printf("  mapped by the library                  %8.1f us   %.2f of the bare calls\n", ours_us,
           ours_us / bare_us);
    printf("  mapped by the driver's bare calls      %8.1f us\n", bare_us);
    printf("  the descriptor's journey               %8.1f us\n", median_us(journey, count));
    printf("  cw_get(), all of it                    %8.1f us\n", median_us(whole, count));
    return 0;
}
