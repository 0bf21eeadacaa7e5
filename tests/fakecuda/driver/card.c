/*
 * The card's file: see card.h.
 */
#include "tests/fakecuda/driver/card.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOTS      4096
#define SLOT_BYTE  (1 << 20) /* of the first slot; locks need no bytes below them */
#define OWNER_BYTE (1 << 19) /* of the first device's only process */
#define MAGIC      0x63617264u

struct slot {
    uint64_t id; /* rises; 0: never used */
    uint64_t size_bytes;
    int32_t index;
    int32_t pid; /* of the maker, for the reader of a dump */
};

struct card {
    uint32_t magic;
    uint32_t device_count;
    uint64_t memory_bytes;
    uint64_t last_id;
    _Atomic uint32_t lost[FAKE_DEVICES_MAX];
    struct slot slots[SLOTS];
};

static struct card *card;
static int card_fd = -1; /* holds no lock, so that it sees the locks of all others */
static int table_fd = -1;
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;

static CUresult table_lock(void) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    pthread_mutex_lock(&table_mutex);
    while (fcntl(table_fd, F_SETLKW, &whole) < 0)
        if (errno != EINTR) {
            pthread_mutex_unlock(&table_mutex);
            fprintf(stderr, "fakecuda: locking the card: %m\n");
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
    return CUDA_SUCCESS;
}

static void table_unlock(void) {
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(table_fd, F_SETLK, &whole);
    pthread_mutex_unlock(&table_mutex);
}

static int open_below(const char *name) {
    char path[FAKE_VARIABLE_MAX + 16];
    snprintf(path, sizeof path, "%s/%s", fake_config.folder, name);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

/* A new open file description of the card's file, also when its folder is gone. */
static int reopen(void) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", card_fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static CUresult prepare(void) {
    struct stat status;
    if (fstat(card_fd, &status) < 0 ||
        (status.st_size == 0 && ftruncate(card_fd, sizeof *card) < 0)) {
        fprintf(stderr, "fakecuda: the card's file in %s: %m\n", fake_config.folder);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED, card_fd, 0);
    if (card == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!card->magic) {
        card->device_count = (uint32_t)fake_config.device_count;
        card->memory_bytes = fake_config.memory_bytes;
        card->magic = MAGIC;
    }
    if (card->magic != MAGIC || card->device_count != (uint32_t)fake_config.device_count ||
        card->memory_bytes != fake_config.memory_bytes) {
        fprintf(stderr,
                "fakecuda: the card in %s was made with other devices or memory; use the same, or "
                "another CABLEWAY_FAKECUDA_DIR\n",
                fake_config.folder);
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    }
    return CUDA_SUCCESS;
}

CUresult fake_card_open(void) {
    if (card)
        return CUDA_SUCCESS;
    if (table_fd < 0)
        table_fd = open_below("lock");
    if (card_fd < 0)
        card_fd = open_below("card");
    if (card_fd < 0 || table_fd < 0) {
        fprintf(stderr, "fakecuda: opening the card in %s: %m\n", fake_config.folder);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUresult code = table_lock();
    if (code)
        return code;
    code = prepare();
    table_unlock();
    if (code)
        card = NULL;
    return code;
}

static int lock_byte(int fd, int type, off_t byte) {
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

static bool locked(off_t byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(card_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Under the table's lock: bytes in use on a device, and the first free slot (SLOTS if none). */
static uint64_t scan(int index, int *free_slot) {
    uint64_t used_bytes = 0;
    *free_slot = SLOTS;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &card->slots[i];
        if (slot->size_bytes && !locked(SLOT_BYTE + i))
            slot->size_bytes = 0;
        if (slot->size_bytes && slot->index == index)
            used_bytes += slot->size_bytes;
        if (!slot->size_bytes && *free_slot == SLOTS)
            *free_slot = i;
        if (!slot->id)
            break; /* never used, nor any behind it */
    }
    return used_bytes;
}

CUresult fake_card_take(int index, uint64_t size_bytes, int *fd, int *slot, uint64_t *id) {
    CUresult code = table_lock();
    if (code)
        return code;
    uint64_t used_bytes = scan(index, slot);
    int keeper = -1;
    if (*slot == SLOTS || used_bytes > card->memory_bytes ||
        size_bytes > card->memory_bytes - used_bytes)
        code = CUDA_ERROR_OUT_OF_MEMORY;
    else if ((keeper = reopen()) < 0 || lock_byte(keeper, F_RDLCK, SLOT_BYTE + *slot) < 0)
        code = CUDA_ERROR_OPERATING_SYSTEM;
    else {
        *id = ++card->last_id;
        card->slots[*slot] = (struct slot){*id, size_bytes, index, (int32_t)getpid()};
        *fd = keeper;
    }
    table_unlock();
    if (code == CUDA_ERROR_OPERATING_SYSTEM) {
        fprintf(stderr, "fakecuda: taking memory of the card: %m\n");
        if (keeper >= 0)
            close(keeper);
    }
    return code;
}

CUresult fake_card_join(int slot, uint64_t id, int *fd) {
    if (slot < 0 || slot >= SLOTS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = table_lock();
    if (code)
        return code;
    int keeper = -1;
    if (card->slots[slot].id != id || !locked(SLOT_BYTE + slot))
        code = CUDA_ERROR_INVALID_VALUE;
    else if ((keeper = reopen()) < 0 || lock_byte(keeper, F_RDLCK, SLOT_BYTE + slot) < 0)
        code = CUDA_ERROR_OPERATING_SYSTEM;
    table_unlock();
    if (code && keeper >= 0)
        close(keeper);
    else if (!code)
        *fd = keeper;
    return code;
}

CUresult fake_card_piece(int fd, int slot, uint64_t id, int *index, uint64_t *size_bytes) {
    struct stat theirs, ours;
    if (slot < 0 || slot >= SLOTS || fstat(fd, &theirs) < 0 || fstat(card_fd, &ours) < 0 ||
        theirs.st_dev != ours.st_dev || theirs.st_ino != ours.st_ino)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = table_lock();
    if (code)
        return code;
    if (card->slots[slot].id != id)
        code = CUDA_ERROR_INVALID_VALUE;
    *index = card->slots[slot].index;
    *size_bytes = card->slots[slot].size_bytes;
    table_unlock();
    return code;
}

uint64_t fake_card_used_bytes(int index) {
    int free_slot;
    if (table_lock())
        return 0;
    uint64_t used_bytes = scan(index, &free_slot);
    table_unlock();
    return used_bytes;
}

CUresult fake_card_exclusive(int index, int *fd) {
    int keeper = reopen();
    if (keeper < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (lock_byte(keeper, F_WRLCK, OWNER_BYTE + index) < 0) {
        close(keeper);
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    *fd = keeper;
    return CUDA_SUCCESS;
}

void fake_card_lose(int index) {
    atomic_store(&card->lost[index], 1);
}

bool fake_card_lost(int index) {
    return atomic_load(&card->lost[index]);
}
