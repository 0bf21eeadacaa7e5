/*
 * Traces, found and copied: see find.h. One thread. Processes may end at any moment, and write
 * while they are read: what cannot be opened any more is passed over, and an event is whole or left
 * out.
 */
#include "tools/trace/find.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/request/address.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/monitor.h"
#include "tools/trace/files.h"

#define LOOKS 16u /* at a call under way that its thread is just changing */
#define RESTS_NS                                                                                   \
    10000000000 /* the longest rest between two parts of a wait that is taken for one */

static bool is_number(const char *text) {
    return *text >= '1' && *text <= '9';
}

/* The command line with blanks between its words, as far as there is room. */
static void read_command(uint32_t pid, char *command, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(command, 1, room - 1, file) : 0;
    if (file)
        fclose(file);
    while (length && command[length - 1] == 0)
        length--;
    for (size_t i = 0; i < length; i++)
        command[i] = command[i] ? command[i] : ' ';
    command[length] = 0;
}

static void add(struct traces *traces, const struct cw_trace_record *record, bool under_way) {
    if (traces->count == traces->room) {
        traces->room = traces->room ? 2 * traces->room : 4096;
        traces->events = realloc(traces->events, traces->room * sizeof *traces->events);
        CW_ASSERT(traces->events);
    }
    uint32_t process = (uint32_t)traces->process_count - 1;
    traces->events[traces->count++] = (struct trace_event){
        .record = *record, .process = process, .under_way = under_way, .calls = 1};
    traces->processes[process].events++;
}

/* The events of a ring, the oldest first. */
static void read_ring(struct traces *traces, struct cw_trace *trace, unsigned ring,
                      int64_t since_ns, struct trace_process *process) {
    uint64_t count = cw_trace_count(trace, ring), first = 0;
    if (count > CW_TRACE_EVENTS) {
        first = count - CW_TRACE_EVENTS;
        process->overwritten += first;
    }
    int64_t oldest_ns = 0;
    for (uint64_t at = first; at < count; at++) {
        struct cw_trace_record record;
        if (!cw_trace_read(trace, ring, at, &record))
            continue;
        if (!files_can_be(&record, traces->now_ns)) {
            process->broken++;
            continue;
        }
        if (oldest_ns == 0 && first)
            oldest_ns = record.begun_ns + record.duration_ns;
        if (record.begun_ns + record.duration_ns >= since_ns)
            add(traces, &record, false);
    }
    if (ring == 0)
        process->short_since_ns = oldest_ns;
}

/* Has it ended while we read, so that its event is there? */
static bool has_ended(const struct traces *traces, size_t first,
                      const struct cw_trace_record *record) {
    for (size_t i = first; i < traces->count; i++) {
        const struct cw_trace_record *other = &traces->events[i].record;
        if (other->begun_ns == record->begun_ns && other->tid == record->tid &&
            other->kind == record->kind)
            return true;
    }
    return false;
}

static void read_all(struct traces *traces, struct cw_trace *trace, int64_t since_ns) {
    struct trace_process *process = &traces->processes[traces->process_count - 1];
    struct cw_trace_record under_way[CW_TRACE_UNDER_WAY], record;
    unsigned count = 0;
    size_t first = traces->count;
    /* Before the rings: what ends meanwhile is then found there. */
    for (unsigned i = 0; i < CW_TRACE_UNDER_WAY; i++)
        for (unsigned looks = 0, found = 0; looks < LOOKS && !found; looks++)
            count += found = cw_trace_read_under_way(trace, i, &under_way[count]);
    for (unsigned ring = 0; ring < 2; ring++)
        read_ring(traces, trace, ring, since_ns, process);
    for (unsigned i = 0; i < count; i++) {
        struct cw_trace_record *one = &under_way[i];
        if (!files_can_be(one, traces->now_ns)) {
            process->broken++;
            continue;
        }
        if (has_ended(traces, first, one) || !files_thread_lives(process->pid, one->tid))
            continue;
        int64_t rests_since_ns = one->begun_ns + one->duration_ns;
        if (one->duration_ns && traces->now_ns - rests_since_ns > RESTS_NS) {
            one->flags |= CW_TRACE_INTERRUPTED; /* nobody went on with it */
            if (rests_since_ns >= since_ns)
                add(traces, one, false);
            continue;
        }
        one->duration_ns = 0;
        if (one->begun_ns < traces->now_ns)
            one->duration_ns = traces->now_ns - one->begun_ns;
        add(traces, one, true);
    }
    for (unsigned i = 0; i < CW_TRACE_FUNCTIONS; i++) {
        if (!cw_trace_read_function(trace, i, &record))
            continue;
        struct trace_function *function = &process->functions[process->function_count++];
        function->number = record.function;
        memcpy(function->name, record.name, record.name_bytes);
        function->name[record.name_bytes] = 0;
    }
    process->lost = monitor_word(&trace->lost);
}

/* A descriptor that is a trace by its name. A child has its parent's for a moment. */
static void look_at(struct traces *traces, int fd, uint32_t pid, uint64_t address,
                    int64_t since_ns) {
    struct cw_segment segment;
    struct stat status;
    if (fstat(fd, &status)) {
        close(fd);
        return;
    }
    for (size_t i = 0; i < traces->process_count; i++)
        if (traces->processes[i].inode == status.st_ino) {
            close(fd);
            return;
        }
    /* Takes fd over, and makes sure that nobody shortens it under us. */
    if (cw_segment_open(fd, sizeof(struct cw_trace), CW_SEGMENT_TRACE, false, 0, &segment))
        return;
    struct cw_trace *trace = segment.base;
    uint64_t whose = monitor_word(&trace->address);
    if (*(volatile uint32_t *)&trace->version == CW_TRACE_VERSION && whose == address) {
        if (traces->process_count == traces->process_room) {
            traces->process_room = traces->process_room ? 2 * traces->process_room : 16;
            traces->processes =
                realloc(traces->processes, traces->process_room * sizeof *traces->processes);
            CW_ASSERT(traces->processes);
        }
        struct trace_process *process = &traces->processes[traces->process_count++];
        *process = (struct trace_process){.pid = pid, .inode = status.st_ino};
        read_command(pid, process->command, sizeof process->command);
        traces->now_ns = cw_now_ns();
        read_all(traces, trace, since_ns);
    }
    cw_segment_close(&segment);
}

struct looking {
    struct traces *traces;
    uint64_t address;
    int64_t since_ns;
    uint32_t pid;
};

static bool look_at_file(void *context, int fd) {
    struct looking *looking = context;
    look_at(looking->traces, fd, looking->pid, looking->address, looking->since_ns);
    return true;
}

int traces_find(int64_t since_ns, struct traces *out) {
    struct cw_address place;
    *out = (struct traces){.now_ns = cw_now_ns()};
    int code = cw_address_find(NULL, &place);
    if (code)
        return code;
    out->address = strdup(place.socket_path);
    CW_ASSERT(out->address);
    struct looking looking = {out, cw_trace_address(place.socket_path), since_ns, 0};
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (is_number(entry->d_name)) {
            looking.pid = (uint32_t)strtoul(entry->d_name, NULL, 10);
            files_of(looking.pid, look_at_file, &looking);
        }
    if (folder)
        closedir(folder);
    return 0;
}

void traces_free(struct traces *traces) {
    free(traces->address);
    free(traces->processes);
    free(traces->events);
    *traces = (struct traces){.now_ns = 0};
}
