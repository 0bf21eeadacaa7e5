/*
 * cableway.h: share arrays by name between processes, without copies.
 *
 * The one public header of libcableway. Plain C, so that CFFI reads the same text.
 *
 * Results: 0 (or what is said) or a negative errno value; cw_error() then has a sentence for this
 * thread. -ENOENT no such name; -EEXIST the name is taken; -ESTALE the array behind a handle is
 * gone; -EDQUOT a limit or no memory left; -ECONNRESET the broker is lost; -ETIMEDOUT; -EINVAL a
 * bad argument; -ENODEV no such device; -EPROTO a breach of protocol or another version; -EPERM
 * refused; -EINTR a signal came while waiting, and nothing was done; -EINPROGRESS (of what changes
 * something) the same, but the broker has the request, stands still, and may yet do it; -EAGAIN
 * nothing there, -EBUSY in use, -ESHUTDOWN to leave (where said); -EREMOTEIO another node could not
 * be reached, or refused; -EHOSTUNREACH (where -EREMOTEIO is said) its bridge went again and again
 * while something was fetched, so another try may succeed. Outputs come last and are set on success
 * alone.
 *
 * Arguments: a pointer may be NULL only where that is said, or where 0 bytes lie behind it. NULL
 * anywhere else, a number out of range, and a cell or task that is not the caller's: -EINVAL from
 * what returns an int; NULL, 0 or zeros from what gives something else; nothing happens in what
 * gives nothing. Of an int that is 0 or 1 anything but 0 counts as 1. So no argument ends the
 * process, but a pointer to what is not there may.
 *
 * Structs: they grow into their reserved words alone, so a program goes on working with a later
 * library of the same soname. What a caller fills he begins with zeros ({.field = value} does).
 *
 * Threads: every function may be called from any thread, unless
 * said otherwise. Fork: a client does not work in a forked child; cw_client_forked() tells, and the
 * child connects anew. Arrays inherited over fork stay mapped and stay held (the parent's leases
 * are doubled at fork) as long as the child or a child of it lives. Time: timeout_ns < 0 means for
 * ever, 0 means not at all.
 *
 * Signals: what waits and says -EINTR returns it when a signal's handler has run on its thread,
 * whether that was set with SA_RESTART or without, and with a limit of time or without. A signal
 * that comes just before the wait does not end it. Who wants to wait on calls again.
 */
#ifndef CABLEWAY_H
#define CABLEWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CW_VERSION        "0.1.0"
#define CW_VERSION_NUMBER 100 /* 10000 * major + 100 * minor + patch, for #if */
#define CW_NDIM_MAX       64
#define CW_NAME_MAX       200  /* bytes of a name */
#define CW_NAMESPACE_MAX  64   /* bytes of a namespace */
#define CW_DTYPE_MAX      2048 /* bytes of a dtype's text */

typedef struct cw_client cw_client; /* a connection to the broker; reference counted */
typedef struct cw_array cw_array;   /* one lease on one array, mapped */

/* What the bytes of an array mean. Strides in bytes; strides[i] for C or Fortran order are computed
 * when strides is NULL (C order). dtype is NumPy's: a typestr ("<f8") or, for structured types, a
 * literal; or a word for what NumPy cannot tell ("bfloat16"); see cw_dtype_size() for its forms.
 * The pointers are borrowed. */
typedef struct cw_layout {
    uint32_t ndim;
    uint32_t itemsize;      /* bytes of one element */
    const int64_t *shape;   /* ndim values */
    const int64_t *strides; /* ndim values in bytes, or NULL */
    const char *dtype;      /* terminated text */
    uint64_t reserved[2];   /* 0 */
} cw_layout;

/* A handle: names an array for another process of the same broker. 48 bytes, to be carried by any
 * means. */
typedef struct cw_handle {
    uint64_t instance; /* run of the broker */
    uint64_t token;    /* transit lease, 0 when the carrier holds the array itself */
    uint32_t slab, block;
    uint64_t gen;
    uint64_t offset_bytes; /* within the block */
    uint64_t size_bytes;
} cw_handle;

/* The sentence for this thread's last failure: what was asked, what was found, what to do. Never
 * NULL. */
const char *cw_error(void);
/* Version of the library that runs, as CW_VERSION and as CW_VERSION_NUMBER. */
const char *cw_version(void);
int cw_version_number(void);

/*
 * The bytes of one element of a dtype, as itemsize of a layout has to be. -EINVAL: no dtype that
 * can be shared. A typestr is '<', '>', '|' or '=' and then b1; i or u with 1, 2, 4 or 8; f with 2,
 * 4, 8 or 16; c with 8, 16 or 32; S, U or V with a length; M8 or m8, with a unit ("<M8[ns]") or
 * without. Objects (O) cannot be shared.
 *
 * A structured type is, with names that differ and are written as Python's repr() does:
 * - a list as in the NPY format's 'descr' (NEP 1), [('x', '<f4'), ('y', '<i2', (3,))], its fields
 *   without gaps; [('x', '|b1'), ('', '|V3'), ('y', '<f4')] has one of 3 bytes;
 * - a dict, as Python writes where a list cannot tell all: {'names': ['x', 'y'], 'formats': ['|b1',
 *   '<f8'], 'offsets': [0, 8], 'itemsize': 16, 'aligned': True} is numpy.dtype(..., align=True).
 *   Behind 'itemsize' may come 'titles', 'aligned' and 'record', in this order. A format is a
 *   typestr, a list or a dict; in a list stands no dict;
 * - "|V2400 of 300 fields, zlib ...": what is longer than CW_DTYPE_MAX, compressed by Python; C
 *   programs see the element's bytes alone.
 *
 * A word stands alone, for what NumPy has no typestr for: bfloat16; float8_e4m3fn, float8_e4m3fnuz,
 * float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu; complex32 (two numbers of f2); and of one byte with
 * two numbers in it, the first one in its low half, float4_e2m1fn_x2, int4_x2, uint4_x2: the shape
 * counts these bytes. There are no others: every other text that begins with a letter is refused.
 */
int cw_dtype_size(const char *dtype, uint32_t *size_bytes);

/* What array libraries call a dtype; "": such a library has none. */
typedef struct cw_dtype_row {
    const char *dtype; /* the text in a layout: a word, or the typestr of a number ("<f4") */
    const char *ml_dtypes, *torch, *safetensors;
    uint32_t size_bytes; /* of one element */
    uint8_t dlpack_code; /* DLDataTypeCode */
    uint8_t dlpack_bits; /* of one lane */
    uint16_t dlpack_lanes;
} cw_dtype_row;
/* All words, then the plain numbers; *count, which may be NULL: how many. Constant, never freed. */
const cw_dtype_row *cw_dtype_table(uint32_t *count);

/* ---- clients ---- */

enum cw_connect_flags { CW_CONNECT_NO_START = 1 /* do not start a broker when none runs */ };
/*
 * Connects to the broker whose socket is at address (NULL: the user's own: $CABLEWAY_DIR, else
 * $XDG_RUNTIME_DIR/cableway, else /tmp/cableway-UID), and starts one there if none runs. name_space
 * NULL: $CABLEWAY_NAMESPACE, else "". The environment does not count in a program that has more
 * rights than its caller (setuid). A relative address counts from the working folder; a relative
 * $CABLEWAY_DIR is refused. Blocks, 10 s at most. The caller owns *out:
 * cw_client_unref(). -EPERM when the folder is not ours, -EPROTO another version, -ECONNRESET none
 * could be reached or started, -ENOSYS no pidfd_open() (Linux before 5.3, or valgrind before it
 * knew that call).
 */
int cw_connect(const char *address, const char *name_space, uint32_t flags, cw_client **out);
/* The same, and a broker that runs is waited for so long; < 0: 10 s. One that has to be started is
 * waited for until it listens. -ETIMEDOUT. */
int cw_connect_within(const char *address, const char *name_space, uint32_t flags,
                      int64_t timeout_ns, cw_client **out);
void cw_client_ref(cw_client *client);
/* The last reference ends the session; arrays hold one each. NULL is allowed. */
void cw_client_unref(cw_client *client);
/* 1 if this client came over a fork and does not work here. Costs no system call. */
int cw_client_forked(const cw_client *client);
/* 0, or -ECONNRESET when the broker is known to be gone. Does not block. */
int cw_client_check(cw_client *client);
/* The path of the broker's socket, and the namespace; borrowed from client. */
const char *cw_client_address(const cw_client *client);
const char *cw_client_namespace(const cw_client *client);
/* The broker's process, and the number of its run, which its handles have. */
int cw_client_broker_pid(const cw_client *client);
uint64_t cw_client_instance(const cw_client *client);

/* ---- arrays ---- */

enum cw_array_flags {
    CW_ZERO = 1, /* cw_array_new: filled with zeros */
    /*
     * cw_get, cw_array_open: read-only; the library writes nothing there. A write through its
     * address is a SIGSEGV in a process that only reads. An array has one address in a process: one
     * that was opened beside a writable array on the same block lies where that lies, and nothing
     * stops a write, also when the writable one is closed, until no array on the block is open any
     * more. Where a writable one came later, the pages of its block can be written as long as it is
     * open at least; small arrays share pages.
     */
    CW_READONLY = 2,
    CW_REPLACE = 4, /* cw_array_put: a taken name is replaced, at once and whole */
    CW_KEEP = 8,    /* cw_array_put: the name outlives the user's last client */
    /*
     * cw_get, cw_array_open: copy-on-write. What is written here nobody else ever sees, and it goes
     * with the array's close; it has no name and no handle. Where nothing was written yet, later
     * writes of others show: so nobody may write to the block as long as it is open so. Host memory
     * alone (-EINVAL), and not with CW_READONLY (-EINVAL). A forked child has its own copy. Every
     * page that is written takes memory of this process.
     */
    CW_PRIVATE = 16,
    CW_POOL = 32, /* cw_array_new: another allocator carves it; its pieces are lent, see below */
    /*
     * cw_array_new, on a GPU: when an allocation of this process there would fail, the array's
     * bytes go to host memory, those first that were used last the longest time ago, and come back
     * at the next use. Not while it is used, and never again once another process may know of it (a
     * name, a handle, a fork). See cw_array_pin() for its address.
     */
    CW_EVICTABLE = 64,
    CW_REMOTE_READ = 128, /* cw_array_put: every peer of this node may read it */
    /*
     * cw_array_new, in host memory: all of it is about to be written through its pointer, as
     * cw_array_prefault() has it. Who has the bytes in one piece leaves it out, and copies them by
     * cw_array_write(), which takes half the time.
     */
    CW_FILLED = 256,
    /*
     * cw_array_new: in memory of its own, from 64 KiB on (on a GPU from 1 MiB on; smaller ones lie
     * as without it), so that a tree's part can follow another one of the same size at its
     * addresses: cw_mount_swap() copies those that lie otherwise.
     */
    CW_APART = 2048,
    /*
     * cw_array_put, cw_tree_put: the name ends when this process ends, however it ends, or closes
     * the client; who has the array open keeps it. -EINVAL with CW_KEEP, or of another node's name.
     */
    CW_TIED = 8192,
    /*
     * cw_array_put: nobody writes to the array's memory any more, under whatever name. Whoever
     * opens it from now on has it read-only; also if the put fails. Who has it open for writing,
     * the caller too, must not write: nothing stops them, and readers would not agree. Other nodes
     * may then have its bytes from each other (cablewayd --fan-out). -EINVAL of another node's
     * name.
     */
    CW_SEAL = 16384,
    /*
     * cw_array_new, in host memory, of 1 MiB or more (else -EINVAL): nothing else lies on its
     * pages, so that cw_array_make_private() can be called. For allocators of other libraries.
     */
    CW_OWN_PAGES = 32768,
    /*
     * cw_array_new, in host memory, of 1 MiB or more (else -EINVAL): only in memory of this client
     * that an array had before, where that is free: its pages are there, so it costs no time.
     * -EAGAIN, without a sentence: there is none; nobody was asked.
     */
    CW_REUSED = 65536
};
/*
 * Allocates an unnamed array on device ("cpu"). The caller owns *out: cw_array_close(). Asks the
 * broker only when a new slab is needed. -EDQUOT, -EINVAL, -ENODEV, -ECONNRESET.
 */
int cw_array_new(cw_client *client, const char *device, const cw_layout *layout, uint32_t flags,
                 cw_array **out);
/*
 * Before all of a new host array is written through its pointer: maps its memory in one go, which
 * page by page takes as long as the writing. Where it was written or passed on already, and on a
 * GPU, it does nothing. Blocks for some 0.2 s a GiB; threads of the library's own may take a share.
 */
void cw_array_prefault(cw_array *array);
/*
 * From now on, until its close, what is written at the addresses of an array made with CW_OWN_PAGES
 * is seen by this process alone, and by children forked afterwards until either writes. What it
 * held is still what others see who open it. For an array that nobody else has or will have: so a
 * fork can be what it is with other memory. Called before the fork; asks nobody. Where it fails
 * nothing has changed. -EINVAL, -EDQUOT.
 */
int cw_array_make_private(cw_array *array);
/*
 * Adopts shared memory of somebody else (a file in /dev/shm, a memfd) as an array, without a copy.
 * fd stays the caller's. Weaker than our own memory: if its owner shrinks it, who reads gets a
 * SIGBUS. -EINVAL if fd is not shared memory or too small; -EPERM if it is open for reading alone,
 * or sealed against writing.
 */
int cw_array_adopt(cw_client *client, int fd, uint64_t offset_bytes, const cw_layout *layout,
                   cw_array **out);
/*
 * A copy on a device of the array under a name, also where this process cannot reach its memory: on
 * a GPU that CUDA_VISIBLE_DEVICES hides, or in a child of a process that used CUDA. cableway-mover
 * copies, which the broker starts when it is first needed (about a second). Blocks until the last
 * write to the array is complete, and the copy. The caller owns *out. -ENOENT; -ENODEV: no such
 * device, or what the mover says; -EDQUOT, -EINTR, -EOWNERDEAD, -ECONNRESET.
 */
int cw_get_copy(cw_client *client, const char *name, const char *device, cw_array **out);
/* Names an array. Who held the old one keeps it. -EEXIST (taken, without CW_REPLACE), -EINVAL (bad
 * name), -EDQUOT, -EINPROGRESS. A view of the array with another layout may be named: layout NULL
 * means the array's own; offset_bytes leads from the array's lowest byte (cw_array_data, unless
 * strides are negative) to the view's element 0. */
int cw_array_put(cw_array *array, const char *name, uint32_t flags, const cw_layout *layout,
                 uint64_t offset_bytes);
/* The same to a name of another node, onto that node's GPU ("cuda:N" as it counts them, without a
 * mask; "cpu": as cw_array_put()). -ENODEV: it has no such GPU; -EDQUOT: no memory there. A name of
 * this node with a GPU is -EINVAL, since an array is named where it lies; "//NODE/NAME" with this
 * node as NODE is not: a copy is made there and named. */
int cw_array_put_at(cw_array *array, const char *name, const char *device, uint32_t flags,
                    const cw_layout *layout, uint64_t offset_bytes);
/*
 * The array under a name. When its slab is mapped already it asks nobody and makes no system call,
 * but for a client's first look at a name, and the first after the directory of names has grown:
 * these ask the broker for the directory's memory. -ENOENT.
 *
 * A name "//NODE/NAME" is one of another node, here and in cw_array_put(), cw_wait(), cw_remove(),
 * cw_names() and cw_name_stat(); where NODE is this node, it is the name NAME here. Getting it
 * fetches the array once into memory of this node, where all clients share it, mapped read-only (a
 * *replica*), and blocks until it is there, whole and checked; what was fetched is fetched again
 * only when the name means another array at its node. What is written into the array there later
 * does not show here. -EREMOTEIO, -EINTR.
 */
int cw_get(cw_client *client, const char *name, uint32_t flags, cw_array **out);
/*
 * The same, for timeout_ns at most (< 0: for ever): -ETIMEDOUT if the array of another node did not
 * come in that time. If it can be fetched it is, for whoever asks next. A name that is not there is
 * not waited for: cw_wait().
 */
int cw_get_within(cw_client *client, const char *name, uint32_t flags, int64_t timeout_ns,
                  cw_array **out);
/*
 * cw_get_within() of a name of another node, in memory of a GPU of this process ("cuda:N"; "cpu":
 * in host memory), where all processes of this node that see the GPU share it. Its bytes go to the
 * GPU while others come; of what is in this node's memory already a copy is made here. It is to be
 * read alone: nobody else would see what is written to it. -EINVAL: a name of this node; -ENODEV,
 * -EDQUOT (no GPU memory left), -EOWNERDEAD (its writer died there), and as cw_get().
 */
int cw_get_at(cw_client *client, const char *name, const char *device, uint32_t flags,
              int64_t timeout_ns, cw_array **out);
/* Waits until the name is there. Blocks. -ETIMEDOUT, -EINTR, -ECONNRESET. */
int cw_wait(cw_client *client, const char *name, int64_t timeout_ns);
/*
 * Of all who would make what a name of this node is to mean, and call this, one has the claim at a
 * time. 0: the name is not there, and the claim is the caller's until cw_claim_end() with *token,
 * or its process's end. -EAGAIN: the name is there by now, or another one's claim ended: look
 * again. -ETIMEDOUT, -EINTR. It decides nothing: who has none may put the name as well.
 */
int cw_claim(cw_client *client, const char *name, int64_t timeout_ns, uint64_t *token);
/* Does not block. */
void cw_claim_end(cw_client *client, const char *name, uint64_t token);
/* Removes a name. -ENOENT, -EINPROGRESS. */
int cw_remove(cw_client *client, const char *name);
/* All names of the client's namespace that begin with prefix ("" or NULL for all), each terminated,
 * one behind the other; *count of them. The caller owns *names: cw_free(). A prefix "//NODE/..." or
 * "//NODE" asks that node, and blocks; its names come without it. */
int cw_names(cw_client *client, const char *prefix, char **names, uint64_t *count);
/*
 * Is this a name? 0 or -EINVAL with the rule that it breaks. Grammar: 1 to 200 bytes of UTF-8;
 * parts divided by '/', none of them empty, "." or ".."; no control characters (so no NUL), no
 * leading or trailing '/'. Or "//NODE/NAME": NODE 1 to 63 of A-Z a-z 0-9 _ . -, at most 223 bytes
 * in all.
 */
int cw_name_check(const char *name);
/* This node's name, by which others know its arrays ("//NODE/..."), into node, which has room for
 * 64 bytes. -ENOENT: no bridge runs now; it is not started. Blocks as a request to the bridge. */
int cw_node(cw_client *client, char *node);
/* Does it name an array of this node? 1: it does, also as "//NODE/NAME" with this node's name; 0:
 * of another. Asks the bridge for the latter. -EINVAL, -EREMOTEIO (no such peer). */
int cw_name_is_here(cw_client *client, const char *name);
/* Frees what a function has given so. NULL is allowed. */
void cw_free(void *memory);

/* Ends the lease. Pointers into it become invalid. NULL is allowed. */
void cw_array_close(cw_array *array);
/* Address of element 0: the array's lowest byte, or where strides are negative that much above. */
void *cw_array_data(const cw_array *array);
/* Bytes from the lowest to the highest that the array spans. */
uint64_t cw_array_nbytes(const cw_array *array);
int cw_array_readonly(const cw_array *array);
/* Will nobody write to its memory any more, whoever opens it? 1 of what lies in a published tree
 * (without CW_TREE_UNSEALED) or came from another node; else 0. Never blocks. */
int cw_array_sealed(const cw_array *array);
/* The layout; its pointers are borrowed from array. */
void cw_array_layout(const cw_array *array, cw_layout *out);
/* "cpu", or "cuda:N" by this process's mask; borrowed. */
const char *cw_array_device(const cw_array *array);
/* The number of its GPU in this process, -1 for host memory. cw_array_data() of a GPU array is an
 * address of the GPU: the CPU must not touch it. */
int cw_array_gpu(const cw_array *array);
/* The UUID of its GPU, the same in every process ("GPU-..."); "" for host memory. */
void cw_array_device_uuid(const cw_array *array, char uuid[41]);
/* The client that it belongs to; borrowed. */
cw_client *cw_array_client(const cw_array *array);
/* 1 when no lease of ours stands on it (the client came over a fork): take one with
 * cw_array_renew(). */
int cw_array_inherited(const cw_array *array);
/* In a forked child: takes a lease of the child's own client on an inherited array. The mapping
 * stays. -ESTALE. */
int cw_array_renew(cw_array *array, cw_client *client);
#define CW_OPENERS_MAX     65536 /* processes, or openings, for which one handle is made */
#define CW_OPENERS_UNKNOWN -1
/*
 * A handle for other processes. openers 1 to CW_OPENERS_MAX: the broker holds the array until the
 * handle was opened so often, or transit_seconds ran out. CW_OPENERS_UNKNOWN: until transit_seconds
 * ran out, or pickle_seconds after another client than this one first opened it, or after this
 * one's end if it alone has opened it; earlier where memory is short, or where what stays so is
 * more than max_pickle_bytes. 0: the caller keeps its own lease until the other side has opened it.
 * -EINVAL: another number. -EDQUOT: a handle more than max_client_transits. It asks the broker only
 * where that is behind.
 */
int cw_array_export(cw_array *array, int openers, cw_handle *out);
/* Opens a handle: takes a lease, and is one of its openers. layout is how to see the bytes.
 * -ESTALE. */
int cw_array_open(cw_client *client, const cw_handle *handle, const cw_layout *layout,
                  uint32_t flags, cw_array **out);
/* Is one of its openers, who need not open it. */
int cw_handle_skip(cw_client *client, const cw_handle *handle);
/* Ends the broker's hold for a handle, whoever was still to open it. */
int cw_handle_discard(cw_client *client, const cw_handle *handle);

/* Handles as bytes, for any transport: a fixed form with version and check, no pickle. */
#define CW_HANDLE_BYTES_MAX   8192
#define CW_HANDLE_NODE_MAX    64
#define CW_HANDLE_ADDRESS_MAX 4095
typedef struct cw_handle_info { /* what a handle says of its maker */
    cw_handle handle;           /* as cw_array_export() made it */
    uint64_t made_ns;           /* CLOCK_REALTIME */
    uint64_t tree_version;      /* 0: it is an array's, not a tree's */
    uint32_t openers;
    uint32_t flags;     /* CW_READONLY or 0 */
    char node[65];      /* CW_HANDLE_NODE_MAX and a NUL, as the others */
    char address[4096]; /* of the broker's socket */
    char name_space[65];
} cw_handle_info;
/*
 * Writes a handle on the array, or on a part of it (layout and offset_bytes as for cw_array_put()),
 * to out, which has room for CW_HANDLE_BYTES_MAX bytes. The broker holds the array until
 * cw_from_handle() has opened it openers times (1 to CW_OPENERS_MAX), whoever dies meanwhile, at
 * most transit_seconds; the caller may close it at once. Openings are counted, those of one process
 * as well. flags: CW_READONLY, for who opens it. -EINVAL, -EDQUOT, as cw_array_export().
 */
int cw_to_handle(cw_array *array, uint32_t openers, uint32_t flags, const cw_layout *layout,
                 uint64_t offset_bytes, void *out, uint64_t *size_bytes);
/*
 * Opens it: takes a lease, and is one of its openers. flags as for cw_array_open(). -EPROTO: no
 * handle, a damaged one, beyond its block, or a tree's. -EXDEV: of another node, or of another
 * broker than the client's. -ESTALE: the array is gone, since it was opened so often already, or
 * transit_seconds ran out, or the broker was started again.
 */
int cw_from_handle(cw_client *client, const void *bytes, uint64_t size_bytes, uint32_t flags,
                   cw_array **out);
/* What it says, without opening it. -EPROTO. Needs no broker. */
int cw_handle_describe(const void *bytes, uint64_t size_bytes, cw_handle_info *out);
/* Copies host memory into an array at offset_bytes, or out of it, on whatever device it lies.
 * -EINVAL beyond its end. Blocks until it is done; of a GPU array, also until its last write has
 * passed. -ECONNRESET once the broker is gone, though a host array's memory stays mapped. */
int cw_array_write(cw_array *array, uint64_t offset_bytes, const void *source, uint64_t size_bytes);
int cw_array_read(const cw_array *array, uint64_t offset_bytes, void *destination,
                  uint64_t size_bytes);

/*
 * Copies size_bytes of source at source_bytes to target at target_bytes, from and to any device, by
 * the fastest route that there is. stream NULL: blocks until it is done. Else a CUDA stream
 * (CUstream) of this process: returns when the copy is submitted to it, in order with the arrays'
 * other users as cw_array_writing_begin() has it. -EINVAL, -ENODEV, -EDQUOT, -EOWNERDEAD.
 */
int cw_array_copy(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                  uint64_t size_bytes, void *stream);
/* As a stream of cw_array_copy(): one of the library's own, where the target lies on a GPU; else
 * NULL is meant. A host array that is the source must stay open until the copy is complete, which
 * cw_array_wait() of the target tells. */
#define CW_STREAM_OWN ((void *)-1)
/*
 * Many copies as one piece of work: put in order once, given to the driver by one call where it has
 * that, and told to others when all of them were submitted. They may run in any order, so no target
 * overlaps another's bytes. All arrays of one client. stream NULL: blocks until all are done; else
 * host arrays among them stay open until the stream is past. On -EINVAL, -EDQUOT and -EOWNERDEAD
 * nothing was copied; when the driver fails in the midst (-ENODEV) all targets are marked, and
 * whoever reads one gets -EOWNERDEAD until it is written anew.
 */
#define CW_PAIRS_MAX 1000000u
typedef struct cw_pair {
    cw_array *target;
    uint64_t target_bytes; /* where in it, from its lowest byte */
    cw_array *source;
    uint64_t source_bytes;
    uint64_t size_bytes;
} cw_pair;
int cw_array_copy_many(const cw_pair *pairs, uint64_t count, void *stream);
/*
 * The same as cw_array_copy() with memory of this process that is not ours: host memory (gpu -1),
 * or GPU memory of any library on the GPU of that number.
 */
int cw_array_copy_in(cw_array *target, uint64_t target_bytes, const void *source, int gpu,
                     uint64_t size_bytes, void *stream);
int cw_array_copy_out(cw_array *source, uint64_t source_bytes, void *target, int gpu,
                      uint64_t size_bytes, void *stream);

/*
 * Brings an array with CW_EVICTABLE back if it is away, and keeps it where it is until as many
 * cw_array_unpin(): only so long cw_array_data() holds. Calls that work on the array do this by
 * themselves, and the sections from begin to end. The copy back is put in order as the work of a
 * stream. Other arrays: nothing to be done, 0. -EDQUOT: no room for it; it stays away, whole.
 */
int cw_array_pin(cw_array *array);
void cw_array_unpin(cw_array *array);
/* 1 while the bytes of an array with CW_EVICTABLE are in host memory. */
int cw_array_away(const cw_array *array);

/* ---- loans: arrays that another allocator carves out of an array of ours ---- */

/*
 * The array of bytes at an address that lies in an array with CW_POOL of this client: for
 * allocators of other libraries that have their memory from us. It has a lease of its own, so that
 * it can be named and passed on, and its memory stays as long as anyone holds it. *loan is its
 * number: until cw_loan_next() tells that it ended, the caller leaves the memory as it is and does
 * not use it for something else. The same range gives the same loan as long as it lasts. The caller
 * owns *out. -ENOENT: no pool is there. -EDQUOT: the slab has no block numbers left, also not of
 * loans that have ended; the broker may be asked which these are.
 */
int cw_array_at(cw_client *client, const void *address, uint64_t size_bytes, cw_array **out,
                uint64_t *loan);
/*
 * The same of GPU memory of somebody else's cudaMalloc, by a legacy handle. Weaker than memory of
 * ours: whoever is the same user may open it, and it dies with this process. The caller neither
 * frees nor reuses it before the loan has ended. -EINVAL: the driver gives no handle for it. What
 * is known of the allocation is kept for the next loan, as long as it is not given back to the
 * driver.
 */
int cw_array_borrow(cw_client *client, const void *address, uint64_t size_bytes, cw_array **out,
                    uint64_t *loan);
/*
 * Puts an array behind all that a stream (CUstream; 0, 1, 2: default streams) of this process was
 * given so far, as a piece of writing there does that has nothing in it: for arrays on which
 * another library has been at work. A stream that has nothing to do costs a question. -ESTALE: the
 * array is lent (cw_array_borrow), and its allocation is gone; -EINVAL: the stream is being
 * captured. May wait for others' use of the array, as cw_array_writing_begin() does.
 */
int cw_array_behind(cw_array *array, void *stream);
/* A loan that nobody holds any more, and on whose memory no stream is at work; each is told once.
 * Once the broker is gone: one that this process does not hold. -EAGAIN: none. Blocks only where a
 * process's streams used one that was never met before: the broker is asked for its fences. */
int cw_loan_next(cw_client *client, uint64_t *loan);

/* ---- trees: many arrays under one name, published at once and whole ---- */

/*
 * One version of a tree, held: one lease, on its index, by which all of its leaves stay. Nothing of
 * a version ever changes; a name means one version at a time, and those who have an earlier one
 * keep it. Numbers of versions rise, and none comes twice as long as the broker runs.
 */
typedef struct cw_tree cw_tree;

#define CW_LEAVES_MAX    1048576u    /* of a tree */
#define CW_PATH_MAX      1024u       /* bytes of a leaf's path */
#define CW_TREE_META_MAX (16u << 20) /* bytes of a tree's metadata */
#define CW_LEAF_ALIGN    256u        /* bytes; where leaves of memory that is made for them begin */
#define CW_ANY_VERSION   UINT64_MAX

enum cw_leaf_kind {
    CW_LEAF_PLAIN = 0,
    CW_LEAF_PARAMETER,
    CW_LEAF_BUFFER,
    CW_LEAF_ATTRIBUTE,
    CW_LEAF_KINDS
};
enum cw_leaf_flags {
    CW_LEAF_TRANSIENT = 1, /* of a buffer: it is no part of the module's state */
    CW_LEAF_HASHED = 2     /* its hash is known */
};
enum cw_tree_flags { CW_TREE_NO_HASH = 512, CW_TREE_HASH = 1024, CW_TREE_UNSEALED = 4096 };

typedef struct cw_leaf {
    const char *path; /* terminated; 1 to CW_PATH_MAX bytes of UTF-8 without control characters */
    cw_layout layout; /* strides NULL: C order */
    cw_array *array;  /* to put: in which it lies. Of a tree that is held: NULL */
    uint64_t offset_bytes; /* of its lowest byte: to put, from the array's; else in its part */
    uint64_t size_bytes;   /* that it spans; to put: not looked at */
    uint64_t hash;         /* of these (cw_array_hash); to put: not looked at */
    uint32_t part;         /* to put: not looked at */
    uint32_t alias;       /* number + 1 of an earlier leaf that it is, in the same place; 0: none */
    uint32_t kind, flags; /* enum cw_leaf_kind, enum cw_leaf_flags */
    uint64_t reserved[3];
} cw_leaf;

typedef struct cw_tree_info {
    uint64_t version;
    uint64_t total_bytes; /* of its leaves; aliases count once */
    uint64_t layout_hash; /* of all but the values: in their order the leaves' paths, dtypes,
                             shapes, strides, kinds, ties and places */
    uint64_t
        content_hash; /* of the leaves' hashes, in order, which are of bytes; 0: one has none */
    uint32_t leaves, parts;
    const void *meta; /* borrowed */
    uint64_t meta_bytes;
    const void *index; /* borrowed: all of the index, as docs/PROTOCOL.md has its form, checked */
    uint64_t index_bytes;
    uint64_t reserved[4];
} cw_tree_info;

/*
 * Publishes leaves under a name. They lie in arrays of this client, host or GPU memory, which stay
 * the caller's; nothing is copied. Waits for the last writes to them; whoever opens their memory
 * from now on has it read-only, and who has it writable does not write there any more. Leaves do
 * not overlap but for aliases. meta: up to CW_TREE_META_MAX bytes of the caller's.
 *
 * flags: CW_REPLACE, CW_KEEP, CW_TIED, CW_REMOTE_READ as cw_array_put() has them. CW_TREE_NO_HASH:
 * no leaf gets a hash; CW_TREE_HASH: each does (default: those in host memory). CW_TREE_UNSEALED:
 * who has the arrays writable may go on writing, in sections, which order readers and tell them of
 * a writer's death; no leaf gets a hash, no mount takes the tree, and no other node may fetch it.
 * if_version: which version the name must mean for this to be done; 0: none; CW_ANY_VERSION.
 *
 * The caller owns *out, the version that was published: cw_tree_close(). NULL: it is not wanted.
 * All or nothing of it is seen, whoever dies at whatever moment. -EEXIST (taken, also if if_version
 * is 0), -ESTALE (the name means another version than was said), -EOWNERDEAD (a leaf's writer
 * died), -EINVAL, -EDQUOT, -EINPROGRESS, -ECONNRESET. Blocks.
 *
 * A name "//NODE/NAME" of another node: the leaves are copied there, into host memory, and readers
 * there see the new version when all of it is there. *out is the tree of this node with the number
 * of that version. -EREMOTEIO: the node cannot be reached or refuses, or it is not known whether it
 * was put; -EINVAL also for CW_REMOTE_READ.
 */
int cw_tree_put(cw_client *client, const char *name, const cw_leaf *leaves, uint32_t count,
                const void *meta, uint64_t meta_bytes, uint32_t flags, uint64_t if_version,
                cw_tree **out);
/* The same onto another node ("//NODE/NAME"), all of it onto that node's GPU, "cuda:N" as it counts
 * them without a mask, or "cpu". -ENODEV: it has no such GPU. A name of this node with a GPU is
 * -EINVAL, since leaves stay where they lie. */
int cw_tree_put_at(cw_client *client, const char *name, const char *device, const cw_leaf *leaves,
                   uint32_t count, const void *meta, uint64_t meta_bytes, uint32_t flags,
                   uint64_t if_version, cw_tree **out);
typedef struct cw_version_info {
    char name[201];
    uint32_t latest; /* 1: it is what the name means; else 0 */
    uint64_t version, total_bytes;
    uint64_t created_ns; /* CLOCK_REALTIME, of its put */
    uint32_t holders;    /* processes that have it open */
    uint32_t listed;     /* of these so many are in pids */
    uint32_t pids[64];
    uint64_t reserved[4];
} cw_version_info;
/* Of the versions of a tree's name that are alive, in the order of their numbers, the first one
 * after `after` (0: the first one). begins != 0: of all names of the namespace that begin with
 * name, which may be empty. What is held is its index: who has only closed trees' arrays is not
 * counted. -ENOENT: there is none (without a sentence). Blocks. */
int cw_version_next(cw_client *client, const char *name, int begins, uint64_t after,
                    cw_version_info *out);
/* Gives a tree that is held another name, or the same one again: a version of its own, of the same
 * memory; under a name of another node, of a copy there. As cw_tree_put(). */
int cw_tree_name(const cw_tree *tree, cw_client *client, const char *name, uint32_t flags,
                 uint64_t if_version, uint64_t *version);
/* The same, with a device as of cw_tree_put_at(). */
int cw_tree_name_at(const cw_tree *tree, cw_client *client, const char *name, const char *device,
                    uint32_t flags, uint64_t if_version, uint64_t *version);
/* The tree under a name: the version that it means (0), or that version for as long as somebody has
 * it. Its index is checked to the last byte. The caller owns *out. -ENOENT (no such name, or nobody
 * has that version any more), -ENOTDIR (it is an array: cw_get()), -EPROTO (the index is damaged),
 * -EDQUOT. cw_get() of a tree's name is -EISDIR. */
int cw_tree_get(cw_client *client, const char *name, uint64_t version, cw_tree **out);
/*
 * The same; of another node ("//NODE/NAME") all parts of the tree are first fetched into this
 * node's memory, where processes share them, and what is here already is not fetched again.
 * devices: none: all comes into host memory; one: all comes onto that device; more: what lies on
 * the first GPU that the tree's parts name comes onto the first one, and so on, and what lies in
 * host memory comes into host memory. timeout_ns: for all of it; below 0: none. Also -ETIMEDOUT,
 * -EINTR, -EREMOTEIO, -ESTALE (the name was replaced again and again meanwhile), -ENOENT (the name
 * means another version than was said), -ENODEV. Blocks.
 */
int cw_tree_get_at(cw_client *client, const char *name, uint64_t version,
                   const char *const *devices, uint32_t count, int64_t timeout_ns, cw_tree **out);
/* Waits until the name means a version after that one, or (after 0) anything. Blocks. -ETIMEDOUT,
 * -EINTR, -ECONNRESET, and of another node's name -EREMOTEIO. */
int cw_wait_after(cw_client *client, const char *name, uint64_t after, int64_t timeout_ns);
/* Waits until the name, by which this tree was got, means a later one: also one that was put when
 * the broker that numbered it had been started anew. As cw_wait_after(). */
int cw_tree_newer(const cw_tree *tree, cw_client *client, const char *name, int64_t timeout_ns);
/* Ends the lease. Arrays that were opened of it stay. NULL is allowed. */
void cw_tree_close(cw_tree *tree);
/* About all of it, and about one leaf: 0 to leaves - 1, else -EINVAL. What they point to is
 * borrowed. Any thread; never block. */
void cw_tree_look_at(const cw_tree *tree, cw_tree_info *out);
int cw_tree_leaf(const cw_tree *tree, uint32_t number, cw_leaf *out);
/* Which leaf has this path. -ENOENT. */
int cw_tree_find(const cw_tree *tree, const char *path, uint32_t *number);
/* All of a part (0 to parts - 1), as bytes and read-only: an array with a lease of its own, on
 * whichever client of the same broker. The caller owns *out. -EINVAL, -ENODEV (its GPU is none of
 * this process), -EPROTO, -ECONNRESET. */
int cw_tree_part(const cw_tree *tree, cw_client *client, uint32_t part, cw_array **out);
/* A handle on the tree for another process, as cw_array_export(); and who opens it. */
int cw_tree_export(const cw_tree *tree, int openers, cw_handle *out);
int cw_tree_open(cw_client *client, const cw_handle *handle, uint64_t version, cw_tree **out);
/* The same as bytes; see cw_to_handle() and cw_from_handle(). The caller owns *out. */
int cw_tree_to_handle(const cw_tree *tree, uint32_t openers, void *out, uint64_t *size_bytes);
int cw_tree_from_handle(cw_client *client, const void *bytes, uint64_t size_bytes, cw_tree **out);
/* The same tree without a lease: its leaves and metadata can be looked at, and nothing is held.
 * Handles, names and parts of it are -ESTALE. The caller owns *out. */
int cw_tree_describe(const cw_tree *tree, cw_tree **out);
/* The same of what a name means, also on another node ("//NODE/NAME"), of which the index alone is
 * fetched: leaves, metadata, and which devices parts lie on there; the tree is not held. timeout_ns
 * as cw_tree_get_at() has it. -ENOENT, -ENOTDIR (it is an array), -EPROTO, -ETIMEDOUT, -EREMOTEIO,
 * -EDQUOT. Blocks. */
int cw_tree_describe_name(cw_client *client, const char *name, int64_t timeout_ns, cw_tree **out);

/*
 * A tree's parts at addresses of this process that stay the same while the memory there changes:
 * pointers, tensors and captured CUDA graphs keep them, and see whichever version is mapped. A
 * mount has leases of its own on the parts, and keeps none on the tree.
 *
 * Calls that change what is mapped first wait on the CPU for all work of this process on the GPUs
 * that reach it, in their primary contexts; other contexts are the caller's to wait for. stream:
 * one of the caller's CUstreams, which is asked whether it is being captured (NULL: none). -EINVAL:
 * one is. -EBUSY: a section or a copy of one of the arrays is under way, or another change. If they
 * fail what was mapped is mapped still; where even that cannot be, the tree is unmapped, and
 * cw_error() says so. Any thread. They block. In a forked child: -EINVAL, and host memory stays as
 * it was.
 *
 * While nothing is mapped, calls of this library on the arrays are -EINVAL. What reads there by its
 * own means gets a SIGSEGV, or error 700 on a GPU.
 */
typedef struct cw_mount cw_mount;
enum cw_mount_state { CW_MOUNT_MAPPED = 1, CW_MOUNT_UNMAPPED, CW_MOUNT_PARKED };
/* Reserves addresses and maps all parts, read-only. A part that shares its memory with other arrays
 * (a small one, one that was put without a copy, some from other nodes) is copied, for this mount
 * alone: also at a swap. The caller owns *out. -ENODEV, -EDQUOT, -ECONNRESET. */
int cw_mount_open(const cw_tree *tree, cw_client *client, cw_mount **out);
/* All of a part, as bytes: an array whose address stays, and whose memory is what is mapped. The
 * caller owns *out, and keeps the addresses by it. -EINVAL (parked). */
int cw_mount_part(const cw_mount *mount, uint32_t part, cw_array **out);
/* Takes the memory out of this process; the leases stay. Twice is once. */
int cw_mount_unmap(cw_mount *mount, void *stream);
/* Maps it again. Needs no broker. */
int cw_mount_map(cw_mount *mount);
/* Maps another version of the same layout in place of what is, or was, mapped, whose leases end.
 * -EBADE: paths, dtypes, shapes or places differ, so that addresses would change. -EINTR: a signal
 * came, and nothing has changed. -ECONNRESET: the tree, or the mount, is of a broker that has
 * ended. */
int cw_mount_swap(cw_mount *mount, const cw_tree *tree, void *stream);
/*
 * Copies what lies on GPUs to host memory and ends the leases on it: the GPU memory is free when
 * nobody else has it. -EDQUOT: no host memory.
 * unpark: tree, if the version lives still: it is mapped again. NULL: new GPU memory is filled with
 * the copy, of this process alone.
 */
int cw_mount_park(cw_mount *mount, void *stream);
int cw_mount_unpark(cw_mount *mount, const cw_tree *tree);
/* Which version is mapped, and enum cw_mount_state. */
uint64_t cw_mount_version(const cw_mount *mount);
int cw_mount_state(const cw_mount *mount);
/* Arrays that were opened of it stay, with what is mapped. NULL is allowed. */
void cw_mount_close(cw_mount *mount);
/* The hash of bytes of an array, wherever it lies, as the leaves' hashes are: the sum of the XXH3
 * of each 16 KiB, with their number as the seed. From its lowest byte on. -EINVAL beyond its end,
 * and as cw_array_read(). Blocks until all is read. */
int cw_array_hash(const cw_array *array, uint64_t offset_bytes, uint64_t size_bytes,
                  uint64_t *hash);

/* ---- weights in .safetensors files ---- */

/*
 * The header of a .safetensors file, checked whole by the rules of the format: at most
 * CW_SAFETENSORS_HEADER_MAX bytes of JSON; no name twice; shapes, dtypes and offsets that agree;
 * data without holes and overlaps, which end with the file.
 */
typedef struct cw_safetensors cw_safetensors;
#define CW_SAFETENSORS_HEADER_MAX 100000000u

typedef struct cw_tensor {
    const char *name;      /* terminated */
    cw_layout layout;      /* C order, strides NULL; of two numbers in a byte as words have it */
    uint64_t offset_bytes; /* of its data: behind the header; of a checkpoint, in its file */
    uint64_t size_bytes;
    uint32_t file; /* of a checkpoint */
    uint32_t reserved0;
    uint64_t reserved[2];
} cw_tensor;

/*
 * Reads a header: the JSON, behind the eight bytes with its length. data_bytes: how many follow it
 * in the file, UINT64_MAX where that is not known. path is for sentences. The caller owns *out.
 * -EPROTO: damaged, or no such file; -ENOTSUP: a dtype or a shape that we lack; -EDQUOT. Pure.
 */
int cw_safetensors_parse(const char *path, const void *header, uint64_t header_bytes,
                         uint64_t data_bytes, cw_safetensors **out);
/* NULL is allowed. */
void cw_safetensors_free(cw_safetensors *file);
/* How many tensors it has, in the order of their data, and one of them; what it points to is
 * borrowed. -EINVAL beyond the last. */
uint32_t cw_safetensors_count(const cw_safetensors *file);
int cw_safetensors_tensor(const cw_safetensors *file, uint32_t number, cw_tensor *out);
/* A pair of the file's __metadata__; -ENOENT without a sentence beyond the last. Borrowed. */
int cw_safetensors_note(const cw_safetensors *file, uint32_t number, const char **key,
                        const char **value);

/*
 * A checkpoint: the files of a model, open, their headers checked. A path names a .safetensors
 * file; a folder of such; or the index of one (model.safetensors.index.json), which a folder that
 * has one means, too. It does not change, so any thread may use it. -ENOENT, -EPROTO (a file is
 * damaged, cut off, or no such file; the index and the files disagree), -ENOTSUP, -EINVAL, -EDQUOT,
 * and what the system says of a file (-EACCES, -EIO). The caller owns *out.
 */
typedef struct cw_checkpoint cw_checkpoint;
int cw_checkpoint_open(const char *path, cw_checkpoint **out);
/* After what reads it has ended. NULL is allowed. */
void cw_checkpoint_close(cw_checkpoint *checkpoint);
/* As of a header, of all files together; the metadata are those of the first file. */
uint32_t cw_checkpoint_count(const cw_checkpoint *checkpoint);
int cw_checkpoint_tensor(const cw_checkpoint *checkpoint, uint32_t number, cw_tensor *out);
int cw_checkpoint_note(const cw_checkpoint *checkpoint, uint32_t number, const char **key,
                       const char **value);
/* Reads bytes of a tensor into any memory, on the caller's thread and without a hash: what is small
 * costs more elsewhere. -EINVAL, -EPROTO (the file was written to or cut off), and what read()
 * says. */
int cw_checkpoint_read(const cw_checkpoint *checkpoint, uint32_t number, uint64_t skip_bytes,
                       void *to, uint64_t size_bytes);
/* Which files these are: a JSON list with path, device, inode, size, mtime_ns and the hash of the
 * header of each. The same text means the same files. Borrowed; NULL of NULL. */
const char *cw_checkpoint_identity(const cw_checkpoint *checkpoint);

typedef struct cw_read {
    uint32_t tensor; /* of the checkpoint */
    uint32_t reserved0;
    cw_array *array;       /* into which; NULL: it is only hashed */
    uint64_t offset_bytes; /* there, from the array's lowest byte */
    uint64_t skip_bytes;   /* of the tensor, which are left out */
    uint64_t size_bytes;   /* behind these */
    uint64_t hash;         /* set: of what was read, as cw_array_hash() */
    uint64_t reserved[2];
} cw_read;
/*
 * Reads tensors, all into host memory, all to one GPU or all to nowhere, by threads of its own;
 * what lies one behind the other in a file is best given so. checkpoint, reads and arrays stay
 * until cw_reading_end(), and nobody else uses the arrays meanwhile. -EINVAL, -ENODEV, -EDQUOT.
 */
typedef struct cw_reading cw_reading;
int cw_reading_begin(const cw_checkpoint *checkpoint, cw_read *reads, uint32_t count,
                     cw_reading **out);
/* Waits until all is read: 0, and the files are what they were when they were opened. -EPROTO: one
 * was written to or cut off meanwhile; -EIO and what else read() says. -EINTR, -ETIMEDOUT: it goes
 * on, and may be waited for again. Blocks. */
int cw_reading_wait(cw_reading *reading, int64_t timeout_ns);
/* Ends it, done or not: afterwards nothing is written any more. Waits for what is under way, a
 * piece of 4 MiB a thread. NULL is allowed. */
void cw_reading_end(cw_reading *reading);

/*
 * A checkpoint as a tree under a name, on device ("cpu", "cuda:N"; NULL: wherever it is already,
 * else "cpu"). Of all processes that ask for it at once one reads the files, and all get the same
 * tree; if that one dies or fails, another takes over. Its metadata are a JSON object: "source" is
 * {"path": as it was asked for, "files": cw_checkpoint_identity()}, "metadata" what the first file
 * says. flags: CW_KEEP: also a name that is loaded already is kept from then on, by a next version
 * of the same memory; CW_REPLACE: a tree of other files is replaced by a new version.
 * CW_LOAD_STEPS: cw_load_wait() returns -EINTR also before it allocates and before it waits for
 * what is read, so that a caller whose signal handlers only note a signal looks at these.
 * The caller owns *out: cw_load_end(). As cw_checkpoint_open() and cw_tree_put().
 */
typedef struct cw_load cw_load;
enum cw_load_flags { CW_LOAD_STEPS = 1 };
int cw_load_begin(cw_client *client, const char *name, const char *path, const char *device,
                  uint32_t flags, cw_load **out);
/*
 * The same on each of these GPUs, which differ: a tree for each, under NAME/cuda:N. Each byte of
 * the files is read once for all that are missing: every GPU gets a share of it over its own bus,
 * and the rest from the others. cw_load_wait() gives count trees, in the order of devices.
 */
int cw_load_begin_all(cw_client *client, const char *name, const char *path,
                      const char *const *devices, uint32_t count, uint32_t flags, cw_load **out);
/* Members of a JSON object that a tree which is read here has in its metadata, beside "source" and
 * "metadata". Before cw_load_wait(). -EINVAL: no object, or it has one of these two; -EDQUOT. */
int cw_load_meta(cw_load *load, const char *meta, uint64_t meta_bytes);
/*
 * Loads it, or waits for who does. 0: the caller owns *out. *loaded, which may be NULL: 1 if it was
 * read here. -EEXIST: the name means something else, which the sentence tells, and what to do.
 * -EINTR, -ETIMEDOUT: it goes on, and may be waited for again; a signal in the midst of an
 * allocation gives up what was allocated, which begins anew. Blocks. One thread.
 */
int cw_load_wait(cw_load *load, int64_t timeout_ns, cw_tree **out, int *loaded);
/* Where the time of a load went: of the caller's thread, and of all that read, together. */
typedef struct cw_load_times {
    uint64_t claim_ns, allocate_ns, read_ns, publish_ns;
    uint64_t slot_ns, file_ns, pin_ns, send_ns; /* for pinned memory; files, with hashes; to GPUs */
    uint64_t direct_bytes;                      /* that were read past the page cache */
    uint32_t threads, reserved0;
} cw_load_times;
void cw_load_look_at(const cw_load *load, cw_load_times *out);
/* Ends it, done or not; somebody else may load then. NULL is allowed. */
void cw_load_end(cw_load *load);

/* ---- devices ---- */

/* Names of the devices that arrays can lie on, each terminated, one behind the other: "cpu", and a
 * "cuda:N" for each GPU that this process sees. The first call with a driver installed opens it:
 * half a second. -EDQUOT: it sees more than 64 GPUs (CW_GPUS_MAX). cw_free(). */
int cw_devices(char **names, uint64_t *count);

/* Is there such a device for this process? 0, -ENODEV with the reason (no driver, too old, masked
 * out, forked), -EINVAL: no device name. Takes no GPU memory. */
int cw_device_check(const char *device);
/* The number of the GPU on which memory lies, whoever made it; -1: host memory, or none that CUDA
 * knows. -ENODEV. */
int cw_memory_gpu(const void *address, int *gpu);
/* The array of ours, as bytes, in which an address of GPU memory lies that this process holds; one
 * more lease on it. Of pools see cw_array_at(). The caller owns *out. -ENOENT. */
int cw_memory_array(cw_client *client, const void *address, cw_array **out);
/* 1: an address lies in GPU memory of ours that this process has mapped; 0: it does not, and
 * neither cw_memory_array() nor cw_array_at() finds anything. Asks nobody. */
int cw_memory_is_shared(cw_client *client, const void *address);
/* Waits on the CPU for all work that a stream (CUstream; 0, 1, 2: default streams) of this process
 * on that GPU was given; whole 1: for all streams of that GPU. */
int cw_stream_wait(int gpu, void *stream, int whole);

typedef struct cw_device_info {
    char name[64]; /* what the maker calls it */
    char uuid[41]; /* GPU-...; the same in every process; "" for the host */
    uint64_t memory_bytes, free_bytes;
    uint64_t reserved[8];
} cw_device_info;
/* About one device ("cpu", "cuda:N"). Of a GPU it opens a context, which takes GPU memory. -ENODEV,
 * -EINVAL. */
int cw_device_stat(const char *device, cw_device_info *out);

typedef struct cw_device_place {
    char name[64];
    char uuid[41]; /* as CUDA_VISIBLE_DEVICES takes it: GPU-..., or MIG-... of a part of a GPU */
    char bus[32];  /* where it is plugged in, as sysfs has it: "0000:4e:00.0"; "" unknown */
    uint32_t multiprocessors;
    uint64_t reserved[8];
} cw_device_place;
/* Which GPU a "cuda:N" is, and where; takes no GPU memory. -ENODEV, -EINVAL (also for "cpu"). */
int cw_device_place_of(const char *device, cw_device_place *out);
/* Waits on the CPU for all work of this process on a GPU; at once where the process has no context
 * there. -ENODEV: the context is broken, by which error the sentence says; nothing of this process
 * works on that GPU any more. */
int cw_device_settle(int gpu);
/*
 * A part of a GPU's multiprocessors for this process: the GPU is cut into parts of so many (at
 * least; the driver rounds up), and the one of this number, from 0 on, is taken. *stream, a
 * CUstream that lives as long as the process: work that is given to it runs on the part alone.
 * *got: how many it has. Opens a
 * context, and makes it current on this thread if none is. -ENODEV: the driver has no green
 * contexts (CUDA 12.5 or later has), or the GPU cannot be cut; -EDQUOT: it has no such part.
 */
int cw_device_part(int gpu, uint32_t multiprocessors, uint32_t part, void **stream, uint32_t *got);

typedef struct cw_link_info {
    int reaches;               /* one GPU can use the other's memory (a GPU its own) */
    int rank;                  /* of the driver: the lower, the faster; -1 unknown */
    int atomics;               /* atomic operations work across the link */
    int route;                 /* 1 the same GPU, 2 its copy engine, 3 staged: through the host */
    uint64_t bytes_per_second; /* by that route, measured; 0: not measured */
    uint64_t reserved[4];
} cw_link_info;
/* How bytes get from the GPU from to the GPU to. measured 1: copies between them for some
 * milliseconds, which takes memory and a context on both. -ENODEV, -EDQUOT. */
int cw_link_stat(int from, int to, int measured, cw_link_info *out);
/* The same as the broker knows it, who keeps it for the node. Where nobody has measured yet this
 * call does. -ENODEV, -EDQUOT, -ECONNRESET. */
int cw_link_known(cw_client *client, int from, int to, cw_link_info *out);

/* ---- GPU work in order: arrays that streams of several processes use ---- */

/*
 * Work on a GPU array that a stream is given between begin and end is put in order with that of
 * other streams, in whichever process, without the CPU: the stream waits for the last write (a
 * writer also for the reads under way), and the next user waits for this one. stream is a CUstream
 * of this process on any GPU; 0, 1 and 2 are CUDA's default streams, where begin waits on the CPU.
 * Call end on the same thread, after the work was submitted; between the two, submit to this stream
 * alone. A stream under capture is refused (-EINVAL). Host arrays: nothing to be done, 0.
 *
 * begin blocks while another writes (submits), while what it must wait for is not submitted yet,
 * and when CW_STREAM_WAITS_MAX streams of this process wait already; timeout_ns bounds it.
 * -ETIMEDOUT and -EINTR: nothing was begun. -EOWNERDEAD: who wrote last died before it was complete
 * (nothing was begun); writing_begin does not say so, since it is about to write anew.
 *
 * whole 1: all of the array is written, so that what was incomplete before does not matter.
 * end: 0, or -EOWNERDEAD when what the work waited for is known to have died: the result is no
 * good, and whoever reads the array is told so too. A death after the end no end can tell: ask for
 * it by a completion, below.
 */
int cw_array_writing_begin(cw_array *array, void *stream, int64_t timeout_ns);
int cw_array_writing_end(cw_array *array, void *stream, int whole);
int cw_array_reading_begin(cw_array *array, void *stream, int64_t timeout_ns);
int cw_array_reading_end(cw_array *array, void *stream);
/*
 * The same for work on several arrays: one wait for all that they need and one value at its end,
 * which is what the GPU's time goes into. No deadlock with whoever begins on some of the same
 * arrays in one call, in whatever order. An array that is given twice, or parts of one, count once
 * (writing, if one is). Host arrays: nothing to be done for them. *out is ended once, by
 * cw_work_end(); until then the arrays stay open. NULL as work: nothing to be ended. At most
 * CW_USES_MAX. On failure nothing was begun.
 */
#define CW_USES_MAX (2u * CW_PAIRS_MAX)
typedef struct cw_use {
    cw_array *array;
    int writing; /* else it is read */
    int whole;   /* writing: all of it */
} cw_use;
typedef struct cw_section cw_work;
int cw_work_begin(const cw_use *uses, uint32_t count, void *stream, int64_t timeout_ns,
                  cw_work **out);
int cw_work_end(cw_work *work);
/*
 * The same three ends, which also set *out, in any case: what the work between begin and end came
 * to, to be asked for later. It is plain memory that owns nothing, may be copied and need not be
 * asked. writing_finish is -EOWNERDEAD, too, where a part was written of what was incomplete.
 */
typedef struct cw_completion {
    uint64_t words[72]; /* zeros: nothing on a GPU, complete */
} cw_completion;
int cw_array_reading_finish(cw_array *array, void *stream, cw_completion *out);
int cw_array_writing_finish(cw_array *array, void *stream, int whole, cw_completion *out);
int cw_work_finish(cw_work *work, cw_completion *out);
/*
 * Waits on the CPU until that work is done. client: the arrays'. 0: it is, and all that it came
 * after was complete. -EOWNERDEAD: it is done, but a process died before work that it came after
 * was complete. -ENODEV: the GPU's context failed, it will never be done. -ETIMEDOUT, -EINTR:
 * ask again. -ECONNRESET: not done yet, and without a broker nobody would tell of a death. Any
 * thread, any number of times.
 */
int cw_completion_wait(cw_client *client, const cw_completion *completion, int64_t timeout_ns);
/*
 * For who has waited for the GPU by other means (cuStreamSynchronize(), cuCtxSynchronize()) and has
 * no completions: -EOWNERDEAD when a stream to which this thread gave work had waited for a process
 * that died, and no call has said so yet; then it counts as said. 0: nothing of the kind is known.
 * Never blocks.
 */
int cw_work_check(cw_client *client);
/* Waits on the CPU until the array's last write is complete. 0, -EOWNERDEAD, -ETIMEDOUT, -EINTR. */
int cw_array_wait(cw_array *array, int64_t timeout_ns);

/* ---- what the broker knows ---- */

typedef struct cw_name_info {
    char name[201];
    uint32_t owner_pid;  /* who put it */
    uint32_t holders;    /* clients that hold a lease on it */
    uint32_t references; /* the broker's own: names, transits, forks */
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t nbytes;
    uint32_t keep;
    uint32_t slab;
    uint32_t ndim;
    int64_t shape[64];
    char dtype[2049];
    char device[16];      /* "cpu", or "cuda" */
    char device_uuid[41]; /* which GPU; "" for the host */
    uint64_t version;     /* of a tree: else 0. Its dtype is "tree", its shape how many leaves */
    uint64_t parts;       /* of a tree */
    uint64_t tied;        /* 1: put with CW_TIED */
    uint64_t reserved[5];
} cw_name_info;
/* All about one name. -ENOENT. Of another node's name that node is asked (it blocks: -EREMOTEIO,
 * -EINTR), and name, nbytes, shape, dtype, keep and created_ns are told; the rest is 0 or empty. */
int cw_name_stat(cw_client *client, const char *name, cw_name_info *out);
/* The same of all names that cw_names() would list, in the order of strcmp(), with one question to
 * the broker for some hundreds of them: each(context, info) is called for one after the other on
 * the caller's thread, and a value other than 0 ends it and is returned. What goes meanwhile is
 * left out. A name whose description cannot be read, since whoever put it wrote what is none, has
 * ndim 0 and an empty dtype. Of another node's names each is asked for. */
typedef int cw_on_name(void *context, const cw_name_info *info);
int cw_names_stat(cw_client *client, const char *prefix, cw_on_name *each, void *context);
typedef struct cw_transit_info {
    uint64_t nbytes;          /* of the block in which the array lies */
    uint64_t age_ns, left_ns; /* since its handle was exported; until it ends by itself */
    uint32_t pid;             /* of who exported it; 0: that process has ended */
    uint32_t openers;         /* processes that are still to open it; 0: nobody knows how many */
    uint32_t opened, tied;    /* 1: it was opened, and stays for others; it lies in a queue */
    char device[16];          /* as in cw_name_info */
    char device_uuid[41];
    uint64_t reserved[4];
} cw_transit_info;
/* The oldest handles under way, of all clients, the oldest first: arrays that were exported
 * (pickled, sent, put into a queue) and not opened by all for whom they are. room: of out; at most
 * 96 are told. *count: how many were written; *total: how many there are. */
int cw_transits_oldest(cw_client *client, cw_transit_info *out, uint32_t room, uint32_t *count,
                       uint64_t *total);
/* Who keeps memory of a slab (cw_name_info's slab). */
typedef struct cw_holders_info {
    uint32_t holders;    /* clients that have an array in it open */
    uint32_t listed;     /* of pids: at most 64 */
    uint32_t references; /* the broker's own on its blocks: names, transits, forks, trees */
    uint32_t owner_pid;  /* whose it is; 0: its maker has ended */
    uint32_t pids[64];
    uint64_t reserved[4];
} cw_holders_info;
/* -ESTALE: there is no such slab any more. */
int cw_slab_holders(cw_client *client, uint32_t slab, cw_holders_info *out);
/* Sets a limit of the broker (`cableway limit show` lists them) while it runs, until it ends.
 * *before, *now: its value (0 bytes become what they mean: half of the memory). One that is lower
 * than what is in use takes nothing away and refuses what is new. -EINVAL: no such limit, or out of
 * its range; -EDQUOT: max_fds, and the machine allows no more open files. */
int cw_limit_set(cw_client *client, const char *limit, uint64_t value, uint64_t *before,
                 uint64_t *now);
/* Asks the broker to end. Every client then gets -ECONNRESET; names are lost. */
int cw_broker_stop(cw_client *client);
/* Round trip to the broker. */
int cw_ping(cw_client *client);
/*
 * Gives back host memory that this client keeps to make arrays of, beyond keep_bytes: what lies in
 * no array. Returns how many bytes. *waiting: how many arrays it has let go of that the broker has
 * not given back yet, since others hold them, or since it has not looked; what it has, the next
 * call sees. Any thread. Never blocks.
 */
uint64_t cw_trim(cw_client *client, uint64_t keep_bytes, uint64_t *waiting);
/*
 * Takes back what others have let go of, on all devices, gives up what is entirely free beyond the
 * process's caches (CABLEWAY_CACHE_BYTES, CABLEWAY_GPU_CACHE_BYTES), and unmaps what others took
 * back. Of GPU memory that another process has used, the client may have to ask the broker first
 * whether that work is complete: so it blocks. Whoever allocates does this by himself. -ECONNRESET.
 */
int cw_collect(cw_client *client);

/* ---- queues: any number of writers and readers in any number of processes ---- */

/* One end of a queue, both for putting and for taking. */
typedef struct cw_queue cw_queue;

/* What was taken. Zeros are an empty one; it is used again by the next cw_queue_get(). */
typedef struct cw_item {
    void *data; /* size_bytes of it; the item's. There is room for cw_queue_max(), and it stays */
    uint64_t size_bytes, room_bytes;
    cw_array **arrays; /* count of them, as plain bytes; who sets one to NULL takes it over */
    uint32_t count, room;
    uint64_t reserved[2];
} cw_item;

typedef struct cw_queue_info {
    uint64_t items;      /* in it now */
    uint64_t bytes;      /* of these, as they were charged */
    uint64_t put, taken; /* since it was made */
    uint64_t lost;       /* of the taken: what went with them was gone, or never was an array */
    uint64_t unfinished; /* put, and not yet said to be done */
    uint64_t max_items, max_bytes;
    uint64_t memory_bytes; /* of the memory in which small items lie now */
    uint64_t reserved[3];
} cw_queue_info;

/*
 * Makes a queue of at most max_items items and max_bytes bytes (0: no limit but memory's). It lives
 * in the array *out, a plain one: whoever has that array, by a handle or over a fork, can open the
 * queue, and it ends with the last of them. The caller owns *out. -EDQUOT, -ECONNRESET.
 */
int cw_queue_new(cw_client *client, uint64_t max_items, uint64_t max_bytes, cw_array **out);
/*
 * Opens the queue in an array, which must stay open as long. Any thread may use it. After a fork
 * the child renews the array and opens the queue anew. The parent's cw_queue serves it for small
 * items alone: where an item has handles, or needs a larger ring, it is -EINVAL there. It needs no
 * broker: whoever has the array open may open its queue after the broker's end, too.
 * -EPROTO: no queue is there. -EPERM: the process runs in another pid or time namespace than the
 * queue's maker, so that nobody could tell who died.
 */
int cw_queue_open(cw_array *array, cw_queue **out);
/* Nobody may be using it. What is in the queue stays. NULL is allowed. */
void cw_queue_close(cw_queue *queue);
/* The most bytes of data of one item; more belongs into an array that goes with it. */
uint64_t cw_queue_max(const cw_queue *queue);
/*
 * Puts an item: bytes, and handles (exported with transit 1) that go with it. extra_bytes is what
 * the item is charged beside size_bytes. On success the handles belong to the queue, which keeps
 * what is behind them until the item is taken, whoever dies. Blocks while the queue is full. A
 * writer that dies in it has put its item whole or not at all, and blocks nobody. -ETIMEDOUT: the
 * queue was full until the end. It never says that others were putting: they are waited for, some
 * microseconds each, whatever timeout_ns is. -EBUSY: timeout_ns is over, and one that is in the
 * middle of putting has not run for a second (it is stopped, or asks a broker that does not
 * answer). -EMSGSIZE: can never fit. -EDQUOT: no memory for so many items. -EINVAL: a handle that
 * cw_array_export() cannot have written. -EINTR, -EPROTO. -ECONNRESET: the item has handles, or
 * needs a larger ring, and the broker is gone. Small items need none: they are put and taken by all
 * who have the queue open, and whoever waits for one waits on, whatever becomes of the broker.
 */
#define CW_QUEUE_TRY INT64_MIN /* as timeout_ns 0, but -EBUSY at once where others are at it */
int cw_queue_put(cw_queue *queue, const void *data, uint64_t size_bytes, const cw_handle *handles,
                 uint32_t count, uint64_t extra_bytes, int64_t timeout_ns);
/*
 * Takes the next item, in the order in which they were put. What the item held before is ended.
 * Blocks while the queue is empty. A reader that dies in it leaves its item to the next reader; if
 * it died in the moment between, when what went with the item was its own alone, the item is
 * counted as lost and passed over; so is an item with a handle that names no array. Returns how
 * many arrays go with it. -ETIMEDOUT: the queue was empty until the end. -EBUSY and CW_QUEUE_TRY as
 * for cw_queue_put(). -ECONNRESET: arrays that went with the item were lost with their broker; the
 * next call takes the next item. -ESTALE: the queue had grown, and its broker ended before this
 * process opened the memory that the next item lies in: no call here reaches it. A process that
 * takes items opens that memory as soon as it takes one after the growth. -EINTR, -EPROTO.
 */
int cw_queue_get(cw_queue *queue, cw_item *item, int64_t timeout_ns);
/*
 * The same for threads that share a word of 4 bytes, which is this process's, and what ends their
 * waits: -EAGAIN where one would wait and *word is not as_it_was. cw_queue_gets_end() changes the
 * word and wakes those that wait for it. Any thread; it does not block.
 */
int cw_queue_get_unless(cw_queue *queue, cw_item *item, int64_t timeout_ns,
                        const volatile uint32_t *word, uint32_t as_it_was);
int cw_queue_gets_end(cw_queue *queue, volatile uint32_t *word);
/* Frees what an item holds; it is empty then. NULL is allowed. */
void cw_item_deinit(cw_item *item);
/* Numbers, as they are at some moment of the call. Does not block. */
void cw_queue_look_at(cw_queue *queue, cw_queue_info *out);
/*
 * To watch a queue without taking part, for a descriptor that others poll: begin; look at it
 * (cw_queue_look_at); sleep until items may have been put (taken 0), or taken (1), since begin. A
 * sight is one thread's, zeros at first. The sleep returns 0, also for nothing: begin again; or
 * -EINTR, -EINVAL. rouse ends the sleeps of all who watch.
 */
typedef struct cw_queue_sight_words {
    uint64_t words[5];
} cw_queue_sight_words;
int cw_queue_watch_begin(cw_queue *queue, int taken, cw_queue_sight_words *sight);
int cw_queue_watch_wait(cw_queue *queue, cw_queue_sight_words *sight);
int cw_queue_watch_rouse(cw_queue *queue);
/* An item that was taken is done with. -EINVAL: more often than there were items. */
int cw_queue_task_done(cw_queue *queue);
/* Waits until each item that was put is done with. Blocks. -ETIMEDOUT, -EINTR. */
int cw_queue_wait_done(cw_queue *queue, int64_t timeout_ns);

/* ---- groups: processes that compute together ---- */

/*
 * One member of a group. Processes that know nothing of each other join by name; each has a rank.
 * All members call the same operations in the same order. One thread at a time uses a member
 * (-EBUSY); it does not work in a forked child (-EINVAL).
 *
 * When a member ends, or leaves, or its time runs out, the group is broken: everyone who waits, and
 * each later operation, gets -EOWNERDEAD with a sentence that names the rank, within 100 ms.
 * cw_group_broken() has the numbers, cw_group_reform() goes on with those that are left.
 *
 * Operations wait for timeout_ns of the options at most, for the broker and for all members to be
 * there, and from then on as long for each of their steps: -ETIMEDOUT, which breaks the group. They
 * never return for a signal alone, but ask `interrupted`, where the options have one: what it
 * returns other than 0 ends the operation with -EINTR, which breaks the group.
 */
typedef struct cw_group cw_group;

#define CW_GROUP_RANKS_MAX  256
#define CW_GROUP_NAME_MAX   190 /* bytes of a group's name */
#define CW_GROUP_INLINE_MAX 160 /* bytes of a member that go with its call; more go by arrays */

typedef struct cw_group_options {
    int64_t timeout_ns;                /* for joining, and then for each operation; < 0: for ever */
    int (*interrupted)(void *context); /* NULL: signals end nothing */
    void *context;
    int64_t spent_ns; /* so much of the time for joining is over already */
    uint64_t reserved[3];
} cw_group_options;

enum cw_group_reason {
    CW_GROUP_DIED = 1,        /* its process has ended, or was killed */
    CW_GROUP_LEFT = 2,        /* it closed the group */
    CW_GROUP_TIMED_OUT = 3,   /* its time ran out while others were missing */
    CW_GROUP_INTERRUPTED = 4, /* a signal's handler ended its operation (Ctrl-C) */
    CW_GROUP_FAILED = 5       /* its operation failed in the middle */
};
typedef struct cw_group_break {
    uint32_t reason; /* enum cw_group_reason */
    uint32_t rank;   /* whose */
    int32_t pid;
    uint32_t reserved[5];
} cw_group_break;

/* How elements of the members become one, in the order of the ranks. */
typedef enum cw_reduction {
    CW_SUM = 1,
    CW_PROD = 2,
    CW_MIN = 3, /* NaN, where one is */
    CW_MAX = 4,
    CW_LAND = 5, /* logical and: 1 or 0; integers and bools, as all that follow */
    CW_LOR = 6,
    CW_LXOR = 7,
    CW_BAND = 8, /* bitwise and */
    CW_BOR = 9,
    CW_BXOR = 10,
    CW_REDUCTIONS
} cw_reduction;

/*
 * Joins the group under a name, of so many members, and waits until all are there. rank -1: the
 * lowest that is free; either all members give their rank, or none does. The caller owns *out.
 * -EINVAL: size is not 1 to CW_GROUP_RANKS_MAX, rank not below it, the name is none, or the group
 * is being joined with another size; -EEXIST: the rank is taken; -EBUSY: the group has all its
 * members; -ETIMEDOUT: it was not complete in time, or members of an earlier group of that name
 * live on; -EINTR, -ECONNRESET, -EDQUOT; -EPERM: it runs in another pid or time namespace.
 */
int cw_group_join(cw_client *client, const char *name, uint32_t size, int32_t rank,
                  const cw_group_options *options, cw_group **out);
/* Leaves. Others that wait for this member, or will, find the group broken; so after the last
 * operation all may close at once. NULL is allowed. */
void cw_group_close(cw_group *group);
/* How long operations that begin from now on wait; < 0: for ever. Between operations. -EINVAL:
 * NULL. */
int cw_group_set_timeout(cw_group *group, int64_t timeout_ns);
/* For what is made of several calls: the next call ends in timeout_ns at the latest, in place of
 * the time of the group, which its errors name. < 0: it has its own time. -EINVAL: NULL. */
int cw_group_limit_next(cw_group *group, int64_t timeout_ns);
uint32_t cw_group_rank(const cw_group *group);
uint32_t cw_group_size(const cw_group *group);
/* Operations of all members that this one has completed so far; of cw_group_exchange() not. */
uint64_t cw_group_completed(const cw_group *group);
/* 1: it is broken, and *out, which may be NULL, tells how; 0: not, as far as anybody knows. Does
 * not block. */
int cw_group_broken(cw_group *group, cw_group_break *out);
/* Waits until all members are here. Blocks. -EOWNERDEAD, -ETIMEDOUT, -EINTR, -EINVAL: another
 * member is in another operation (all are told, and the group goes on), -EBUSY. */
int cw_group_barrier(cw_group *group);
/* The same in two calls: 0: done; -EAGAIN: cw_group_barrier_finish() comes next. Looks for about a
 * microsecond, and does not block. */
int cw_group_barrier_begin(cw_group *group);
int cw_group_barrier_finish(cw_group *group);
/*
 * For an operation that this member cannot take part in, since its arguments are wrong, or it has
 * no memory: it comes to the meeting of the operation that the others call, and they get -EINVAL
 * with its reason (ASCII, CW_GROUP_INLINE_MAX - 1 bytes of it). Nothing is done, and all are in
 * step. Blocks as an operation; behind one that has just failed, for what is left of its time.
 * -EOWNERDEAD, -ETIMEDOUT, -EINTR, -EBUSY.
 */
int cw_group_decline(cw_group *group, const char *why);
/* How often it has met the others, or was about to: who compares it knows whether a call that has
 * failed did. May wrap around. */
uint32_t cw_group_meetings(const cw_group *group);
/* Breaks the group, with CW_GROUP_INTERRUPTED: for an operation of several calls here that ends in
 * the middle. -EOWNERDEAD: it is broken already; -EBUSY. */
int cw_group_interrupt(cw_group *group);
/*
 * After -EOWNERDEAD or -ETIMEDOUT: the members that are left make a new group of fewer, with ranks
 * in the same order; cw_group_rank(), cw_group_size() and cw_group_completed() tell what is new: of
 * the numbers of completed operations the lowest, since some may have completed one that others
 * have not. Waits until each member has called it, or has ended or closed the group. -EINVAL: the
 * group is not broken. -ETIMEDOUT: a member that lives did not call it; -EINTR; call it again.
 * -EOWNERDEAD: the others went on without this one.
 *
 * Messages that those who are left sent each other before are received afterwards, in their order;
 * the source is the sender's new rank. Those of members that are gone are dropped.
 */
int cw_group_reform(cw_group *group);
/* Drops also what those who are left sent this member before its last cw_group_reform(), and it has
 * not received: for who does again what was sent. Does not block. -EBUSY, -EINVAL. */
int cw_group_drop_messages(cw_group *group);

/*
 * Elements of one member, contiguous. array: one of this client's, in which data lies; then the
 * others read and write it in place. NULL: any host memory; what the others need of it goes through
 * memory of the group's. On a GPU: an array, of the group's client, and data as cw_array_data()
 * says it. Members may have theirs on the same GPU, on different ones, or in host memory. What is
 * reduced there, and what a member cannot reach, goes by host memory.
 */
typedef struct cw_group_memory {
    void *data;
    cw_array *array;
} cw_group_memory;

/*
 * Operations of all members. dtype as of a layout, count in elements; dtype, count, root and
 * reduction are the same for all members: -EINVAL on all of them where they are not, and nothing
 * was done. Each blocks until its own part is done: what it was given may be changed then. Where no
 * other rule is told, send and receive do not overlap. On a GPU it comes after all work in order on
 * the arrays that was submitted before, by whichever process, and no section of the caller's is
 * open on them; if who wrote what is sent died before it was complete: -EOWNERDEAD, before anybody
 * was met, and cw_group_broken() says whether it was a member.
 *
 * An operation that fails otherwise (-EOWNERDEAD, -ETIMEDOUT, -EINTR, -EDQUOT, -ECONNRESET) leaves
 * what was sent as it is, and what was to be received with no meaning.
 */
/* root's count elements come to all. */
int cw_group_bcast(cw_group *group, cw_group_memory data, uint64_t count, const char *dtype,
                   uint32_t root);
/* Of root's size * count elements, each member receives count, by rank. send counts at root alone.
 */
int cw_group_scatter(cw_group *group, cw_group_memory send, cw_group_memory receive, uint64_t count,
                     const char *dtype, uint32_t root);
/* Root receives size * count elements: count of each member, by rank. receive counts at root alone.
 */
int cw_group_gather(cw_group *group, cw_group_memory send, cw_group_memory receive, uint64_t count,
                    const char *dtype, uint32_t root);
/* The same for all members. In place: send lies in receive, where it belongs. */
int cw_group_allgather(cw_group *group, cw_group_memory send, cw_group_memory receive,
                       uint64_t count, const char *dtype);
/*
 * count elements of each member become count at root, in the order of the ranks, so that the result
 * is the same each time. In place: send is receive. float16 and bfloat16 are computed in float32
 * and rounded once.
 */
int cw_group_reduce(cw_group *group, cw_group_memory send, cw_group_memory receive, uint64_t count,
                    const char *dtype, cw_reduction reduction, uint32_t root);
/* The same for all members, all of which get the same bits. Where send and receive of all members
 * are arrays, each member computes a part of the result and stores it for all; receive may be one
 * array for all. */
int cw_group_allreduce(cw_group *group, cw_group_memory send, cw_group_memory receive,
                       uint64_t count, const char *dtype, cw_reduction reduction);
/* size * count elements of each member become count on each, by rank. */
int cw_group_reduce_scatter(cw_group *group, cw_group_memory send, cw_group_memory receive,
                            uint64_t count, const char *dtype, cw_reduction reduction);
/* Of its size * count elements, each member sends count to each, and receives count of each. */
int cw_group_alltoall(cw_group *group, cw_group_memory send, cw_group_memory receive,
                      uint64_t count, const char *dtype);

/*
 * Bytes of any length. from and to: a rank, or CW_GROUP_ALL; one of them is CW_GROUP_ALL. label
 * (0 to 255): all members give the same. *out: one part a rank, of size 0 and NULL where that
 * member sent nothing, or this one does not receive; the caller owns it: cw_group_parts_free() with
 * the group's size. Blocks, as the operations above. cw_group_completed() does not count it: what
 * is made of the parts is complete with a barrier behind, which is counted.
 */
#define CW_GROUP_ALL UINT32_MAX
typedef struct cw_group_part {
    void *data;
    uint64_t size_bytes;
} cw_group_part;
int cw_group_exchange(cw_group *group, const void *data, uint64_t size_bytes, uint32_t from,
                      uint32_t to, uint32_t label, cw_group_part **out);
/* NULL is allowed. */
void cw_group_parts_free(cw_group_part *parts, uint32_t count);

/*
 * Messages from one member to another. They arrive in the order in which one member sent them; a
 * receiver picks by source and tag, and what it does not ask for waits. Sending copies, and blocks
 * only where CW_GROUP_MESSAGES_MAX messages wait at the receiver. A time that runs out, or a
 * signal's handler, ends the call and breaks nothing: nothing was sent, or received.
 */
#define CW_GROUP_MESSAGES_MAX 4096
typedef struct cw_group_message {
    uint32_t source; /* a rank */
    int32_t tag;
    uint32_t kind; /* the sender's number */
    uint32_t reserved;
    uint64_t size_bytes;
    uint64_t arrival; /* its number here, in the order in which all came */
    void *data;       /* until cw_group_message_end() */
    void *owner;      /* the library's */
} cw_group_message;
/* kind: any number, for the receiver. tag: 0 or more. -EOWNERDEAD, -ETIMEDOUT, -EINTR, -EDQUOT. */
int cw_group_send(cw_group *group, const void *data, uint64_t size_bytes, uint32_t kind,
                  uint32_t to, int32_t tag);
/* Waits for a message from source (-1: anybody) with a tag (-1: any). The caller owns what is in
 * *out: cw_group_message_end(). Blocks. -EOWNERDEAD (a member died, or who could send it has left),
 * -ETIMEDOUT, -EINTR. */
int cw_group_receive(cw_group *group, int32_t source, int32_t tag, cw_group_message *out);
/* The same without waiting for the receiver: -EAGAIN where there is no room now. The first message
 * to it and what is large need the broker's answer: -ETIMEDOUT if it is stopped, when the group's
 * time is over. */
int cw_group_send_now(cw_group *group, const void *data, uint64_t size_bytes, uint32_t kind,
                      uint32_t to, int32_t tag);
/* Whether such a message is there, which stays: 1, with what is told of it in *out, without data;
 * 0. CW_GROUP_KEPT: of those that were there at an earlier look; CW_GROUP_LOOK: of those that have
 * come; CW_GROUP_WAIT: waits for it, as cw_group_receive() does. */
enum cw_group_wait { CW_GROUP_KEPT = 0, CW_GROUP_LOOK = 1, CW_GROUP_WAIT = 2 };
int cw_group_probe(cw_group *group, int32_t source, int32_t tag, enum cw_group_wait wait,
                   cw_group_message *out);
/* Gives a message back; it is received again in its turn. */
int cw_group_unreceive(cw_group *group, cw_group_message *message);
void cw_group_message_end(cw_group_message *message);

/* ---- pools: tasks of one process to its workers, which are in groups; within a group whoever
 * takes a task first has it ---- */

typedef struct cw_pool cw_pool;     /* the parent's end */
typedef struct cw_worker cw_worker; /* a worker's end */

#define CW_POOL_DATA_MAX       4096 /* bytes of a task or an answer; more belongs into an array */
#define CW_POOL_WORKERS_MAX    4095
#define CW_POOL_CELLS_MAX      65536
#define CW_POOL_GROUPS_MAX     64
#define CW_POOL_FUNCTION_MAX   2048 /* bytes of a function that is sent once */
#define CW_POOL_FUNCTION_SLOTS 128

/* A task, or its answer. Its data lies in a cell, in place: the parent's from cw_pool_reserve() to
 * cw_pool_submit() and from cw_pool_collect() to cw_pool_free(), the worker's in between. Where
 * workers peek, it is written by cw_task_write() alone. */
typedef struct cw_task {
    uint32_t cell;
    uint32_t worker; /* collect, bury: whose */
    uint32_t group;  /* submit: in whose queue; otherwise: of which group the task is */
    uint32_t begun;  /* bury: 0: the worker had done no more than to take it */
    uint64_t place;  /* take, peek, collect, bury: a number of the task's own; never used again */
    void *data;      /* room for CW_POOL_DATA_MAX */
    uint32_t size_bytes; /* of data; the other side may lie, but never beyond CW_POOL_DATA_MAX */
    uint32_t kind;       /* the caller's */
    uint64_t function;   /* a number that stands for the function; the caller's, 0: none */
    uint32_t slot;       /* where its bytes lie: cw_pool_function() */
    uint32_t function_bytes;
} cw_task;

/* What a worker says of itself; all from its own memory, so a hostile one may lie. */
typedef struct cw_worker_info {
    uint32_t state;    /* what cw_worker_tell() said last; 0 at the start */
    uint64_t tasks;    /* answered */
    uint64_t busy_ns;  /* in which it had a task, or several */
    uint64_t bytes_in; /* of the tasks' data and what goes with it */
    uint64_t bytes_out;
    uint64_t failed; /* of the tasks: cw_worker_fail() was said of them */
    uint64_t calls;  /* of functions, that it told by cw_worker_called() */
    uint64_t reserved[1];
} cw_worker_info;

/* Bytes of memory for a pool: workers from 1 to CW_POOL_WORKERS_MAX, cells (tasks under way) from
 * workers to CW_POOL_CELLS_MAX, groups from 1 to CW_POOL_GROUPS_MAX. 0 beyond. */
uint64_t cw_pool_bytes(uint32_t workers, uint32_t cells, uint32_t groups);
/* Writes a task's data, or its answer's, so that others may look at it meanwhile. -EINVAL: more
 * than CW_POOL_DATA_MAX. */
int cw_task_write(const cw_task *task, const void *data, uint32_t size_bytes);
/*
 * Memory for a pool that no broker knows: a memfd of at least so many bytes, zeroed but for a
 * number that cw_pool_new() reads, allocated in full, its size sealed. It goes with the last
 * process that has it open or mapped. The caller maps and closes *out_fd. -EINVAL (0 bytes),
 * -EDQUOT (the limit is named).
 */
int cw_pool_allocate(uint64_t memory_bytes, int *out_fd);
/*
 * Formats memory (zeroed or used, at a multiple of 64, at least cw_pool_bytes()) and opens the
 * parent's end; the memory stays mapped as long. One thread at a time calls the functions that take
 * a cw_pool, unless said otherwise: the caller's lock. The caller owns *out. -EINVAL, -EDQUOT.
 */
int cw_pool_new(void *memory, uint64_t memory_bytes, uint32_t workers, uint32_t cells,
                uint32_t groups, cw_pool **out);
/* A worker is about to be started in this group, where it stays until it is buried. A group without
 * workers has its tasks taken by others, so this comes before its first task. -EINVAL: it is in a
 * group already. */
int cw_pool_assign(cw_pool *pool, uint32_t worker, uint32_t group);
/* Only workers with numbers below this one are looked at from now on (all at first): none with a
 * higher number lives, or has left anything. */
int cw_pool_use(cw_pool *pool, uint32_t workers);
/* Nobody may be using it. The memory stays. NULL is allowed. */
void cw_pool_delete(cw_pool *pool);
/* Where the bytes of a function lie, CW_POOL_FUNCTION_MAX, slot from 0 to CW_POOL_FUNCTION_SLOTS
 * - 1. The caller writes them before a task names them and leaves them while one does. */
void *cw_pool_function(cw_pool *pool, uint32_t slot);
/* A free cell in *out. -EAGAIN: all are under way. */
int cw_pool_reserve(cw_pool *pool, cw_task *out);
/* Gives a cell back. -EINVAL: it is not the caller's, but free already or with a submitted task. */
int cw_pool_free(cw_pool *pool, uint32_t cell);
/* One more of the answers for which this worker stays (cw_worker_lend()) needs it no longer: what
 * goes with it was opened, or never will be. Needs no memory, descriptor or broker. How many
 * answers these are the caller alone knows: after one release too many the worker may leave too
 * early, or stay. */
int cw_pool_release(cw_pool *pool, uint32_t worker);
/*
 * Makes a filled task (cell, group, size_bytes, kind, function, slot, function_bytes) ready for
 * whichever worker of the group takes it first. While a group has more than two ready tasks for
 * each of its workers, those of other groups that have been idle for 5 ms take them; those of a
 * group without workers are taken at once. Wakes nobody: cw_pool_wake() does, once for many.
 * -EAGAIN: no place just now. -EINVAL: the cell is not the caller's, the group is none, or more is
 * named than a task or a function can have.
 */
int cw_pool_submit(cw_pool *pool, const cw_task *task);
/* Wakes as many workers of a group as it has tasks that nobody looks for, at most so many, and as
 * many of others for what these may take. */
int cw_pool_wake(cw_pool *pool, uint32_t group, uint32_t most);
/* Takes a ready task back: its cell is the caller's. -EBUSY: a worker has taken it. -EINVAL: none
 * was submitted in the cell, or it has come back. */
int cw_pool_withdraw(cw_pool *pool, uint32_t cell);
/* Which worker has taken a submitted task, -1 while none has, and for how long (0: has just). */
int cw_pool_taker(cw_pool *pool, uint32_t cell, int64_t *elapsed_ns);
/* The next answer; its cell is the caller's. -EAGAIN: none. -EPROTO: out->worker broke the rules.
 */
int cw_pool_collect(cw_pool *pool, cw_task *out);
/* Counts a thread in (1) that will wait for answers, or out (-1; nothing else counts): it then
 * collects what is there. While none is counted in, answers wake the helper. */
void cw_pool_listen(cw_pool *pool, int change);
/* What cw_pool_wait() compares with: rises with each cw_pool_tell(). Any thread. */
uint32_t cw_pool_news(cw_pool *pool, int helper);
/* Ends the waits of all listeners, or of the helper. Any thread. */
void cw_pool_tell(cw_pool *pool, int helper);
/* The helper, having read its news, is about to look whether anything still waits to be submitted:
 * cw_pool_emptied() tells it from now on. Any thread. */
void cw_pool_ask_emptied(cw_pool *pool);
/* The caller has submitted, or dropped, the last task that waited for a cell: ends the helper's
 * wait if it has asked. Any thread. */
void cw_pool_emptied(cw_pool *pool);
/*
 * Waits until there is an answer, or news are no more what they were. A listener spins for spin_ns
 * first; the helper (helper 1, one thread) leaves answers to listeners while there are any. Any
 * thread, without the caller's lock. 0: look. -ETIMEDOUT, -EINTR. Blocks.
 */
int cw_pool_wait(cw_pool *pool, int helper, uint32_t was, int64_t spin_ns, int64_t timeout_ns);
/*
 * Memory that is kept idle. Who is refused some asks parent and workers for theirs: the number of
 * the request. The parent's helper is woken as by cw_pool_tell(), a worker's cw_worker_take()
 * returns -EDQUOT; each gives up what it keeps, and says so: some: there was some.
 * cw_pool_unheeded(): how many have not yet; *some: whether one that has gave something up. All of
 * these also for workers; any thread, those of one process one at a time. Never block.
 */
uint32_t cw_pool_ask(cw_pool *pool);
/* 1: there is a request that the caller has not heeded; *number: the last one. */
int cw_pool_must_heed(cw_pool *pool, uint32_t *number);
void cw_pool_heed(cw_pool *pool, uint32_t number, int some);
uint32_t cw_pool_unheeded(cw_pool *pool, uint32_t number, int *some);
/* 1: workers leave when no task is ready; 0 takes it back. */
void cw_pool_close(cw_pool *pool, int closing);
/* Tells one worker to leave after its task. */
int cw_pool_dismiss(cw_pool *pool, uint32_t worker);
/* Tasks of a group that are ready and not taken, at some moment of the call. */
uint64_t cw_pool_ready(cw_pool *pool, uint32_t group);
/*
 * A worker's process is dead, and cw_pool_collect() has been called until -EAGAIN. Returns, call by
 * call, what it had: 1 a task that it had answered, 0 one that it had taken and not answered (the
 * data may be half overwritten; out->begun); the cells are the caller's. -EAGAIN: no more, its
 * number is free for another worker, of any group.
 */
int cw_pool_bury(cw_pool *pool, uint32_t worker, cw_task *out);
/* What a worker says of itself. */
int cw_pool_look_at(cw_pool *pool, uint32_t worker, cw_worker_info *out);
/* Counts a task that went with its worker; repeated: it is run again. For who watches the pool from
 * outside (`cableway top`). Any thread. Never blocks. */
void cw_pool_count_lost(cw_pool *pool, int repeated);
/* What a worker left in its own 4 KiB, before it told its state; borrowed. */
const void *cw_pool_words(cw_pool *pool, uint32_t worker);

/*
 * Opens a worker's end in a process that has the same memory mapped: one process a number (0 to
 * workers - 1), for the life of which it is in one group. spinners: how many workers of a group may
 * spin for tasks at the same time, for 50 us at most; 0: none does. -EINVAL, -EPROTO (no pool of
 * these sizes is there), -EDQUOT.
 */
int cw_worker_open(void *memory, uint64_t memory_bytes, uint32_t workers, uint32_t cells,
                   uint32_t groups, uint32_t number, uint32_t group, uint32_t spinners,
                   cw_worker **out);
/* NULL is allowed. */
void cw_worker_close(cw_worker *worker);
/* Takes the next task; those that it has not answered stay its own. One thread of the process.
 * Blocks. -ESHUTDOWN: the worker is to leave. -EINTR. -EDQUOT: cw_worker_heed() comes first.
 * -EPROTO. */
int cw_worker_take(cw_worker *worker, cw_task *out);
/*
 * Copies the nth (from 0) ready task of the worker's own group into buffer, which has room for
 * CW_POOL_DATA_MAX, and out, without taking it: whoever takes it later has it, perhaps at once. Any
 * thread. Never blocks. -EAGAIN: there is none. -EPROTO.
 */
int cw_worker_peek(cw_worker *worker, uint32_t nth, void *buffer, cw_task *out);
/* How many workers are in this worker's group, itself among them: those that were started and not
 * yet buried. Any thread. Never blocks. */
uint32_t cw_worker_fellows(cw_worker *worker);
/* The bytes of a task's function, in place. */
const void *cw_worker_function(cw_worker *worker, const cw_task *task);
/* Answers a task: data of size_bytes and kind as they stand. extra_in and extra_out: bytes that
 * went with task and answer beside their data. In any order; any thread, one at a time: the
 * caller's lock. Another one than that which takes calls cw_worker_settle() then. -EINVAL: the task
 * is not one that this worker has taken and not answered. */
int cw_worker_answer(cw_worker *worker, const cw_task *task, uint64_t extra_in, uint64_t extra_out);
/* Counts a failed task: its answer is an error. As cw_worker_answer(). */
void cw_worker_fail(cw_worker *worker);
/* Counts calls of the caller's functions, of which a task may hold many. The thread that takes. */
void cw_worker_called(cw_worker *worker, uint64_t calls);
/* Notes how the function is called of which tasks have this number, in UTF-8, for `cableway trace`.
 * Of a name longer than 56 bytes the end is kept. Any thread. Never blocks. */
void cw_worker_name_function(cw_worker *worker, uint64_t function, const char *name);
/*
 * The next answer needs the worker to stay: memory goes with it that this process alone keeps until
 * the parent has opened it. The parent ends that by cw_pool_release(), once for each such answer.
 * As cw_worker_answer().
 */
void cw_worker_lend(cw_worker *worker);
/* 1: the parent has released all such answers, and what it has not opened by then it never will;
 * else 0. Any thread. Never blocks. */
int cw_worker_released(const cw_worker *worker);
/* Sees to it that answers are collected though nobody listens; cw_worker_take() does so itself. To
 * be called by who takes no more. Any thread. Spins for some microseconds. */
void cw_worker_settle(cw_worker *worker);
/* CW_POOL_DATA_MAX bytes of the worker's own, for what it has to say before cw_worker_tell(). */
void *cw_worker_words(cw_worker *worker);
/* States what it is (the caller's numbers) and wakes the parent's helper. */
void cw_worker_tell(cw_worker *worker, uint32_t state);
/* As cw_pool_ask() and those with it. */
uint32_t cw_worker_ask(cw_worker *worker);
int cw_worker_must_heed(cw_worker *worker, uint32_t *number);
void cw_worker_heed(cw_worker *worker, uint32_t number, int some);
uint32_t cw_worker_unheeded(cw_worker *worker, uint32_t number, int *some);

#ifdef __cplusplus
}
#endif
#endif
