/*
 * A download and the I/O threads that read for it: whoever learns of its end has been told of all
 * its bytes before, however late an I/O thread says that it brought the last of them. Streams share
 * what there is from the first chunks on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "broker/bridge/fetch/transfer_plan.c"
#include "broker/bridge/wire/checksum.c"
#include "broker/bridge/fetch/download.c"

#define SIZE (CWB_STREAM_BYTES + 5)

/* ---- the rest of the bridge ---- */

static uint8_t bytes[SIZE];
static struct cwb_link link_there = {.state = CWB_OPEN_LINK, .read_max = CWB_READ_MAX};
static struct cwb_request closing;
static cwb_on_reply *on_reply;

uint8_t *cw_array_lowest(const cw_array *array) {
    (void)array;
    return bytes;
}
void cw_array_close(cw_array *array) {
    (void)array;
}
bool cw_fresh_take(cw_array *array) {
    (void)array;
    return false;
}
int cwb_local_hold(cw_array *array, cw_array **out) {
    *out = array;
    return 0;
}
void cwb_work_tell(struct cwb_helpers *helpers, struct cwb_work *work) {
    (void)helpers, (void)work; /* the loop has not come to it */
}
struct cwb_link *cwb_peer_link(struct cwb_peer *peer) {
    (void)peer;
    return &link_there;
}
void cwb_peer_await(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_waiter *waiter,
                    int64_t wait_ns) {
    (void)bridge, (void)peer, (void)waiter, (void)wait_ns;
    fail();
}
void cwb_peer_forget(struct cwb_peer *peer, struct cwb_waiter *waiter) {
    (void)peer, (void)waiter;
}
int cwb_link_refused(const struct cwb_peer *peer, const struct cwb_frame *frame) {
    (void)peer, (void)frame;
    fail(); /* no peer refuses anything here */
    return 0;
}
uint32_t cwb_link_piece_bytes(const struct cwb_link *link) {
    return link->read_max;
}
bool cwb_streams_open(const struct cwb_peer *peer) {
    (void)peer;
    return true;
}
void cwb_streams_want(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    (void)bridge, (void)peer;
}
void cwb_streams_read(struct cwb_peer *peer, struct cwb_transfer_plan *plan) {
    (void)peer, (void)plan;
}
struct cwb_request *cwb_link_read(struct cwb_link *link, const struct cwb_read *read,
                                  uint8_t *target, cwb_on_reply *on_read, void *owner) {
    (void)link, (void)read, (void)target, (void)on_read, (void)owner;
    fail(); /* streams are open */
    return NULL;
}
struct cwb_request *cwb_link_ask(struct cwb_link *link, uint16_t op, const struct iovec *parts,
                                 uint32_t count, cwb_on_reply *on_asked, void *owner) {
    (void)link, (void)parts, (void)count;
    assert_int_equal(op, CWB_CLOSE);
    closing.owner = owner;
    on_reply = on_asked;
    return &closing;
}
void cwb_request_forget(struct cwb_request *request) {
    (void)request;
}

/* ---- its owner ---- */

static uint64_t told_bytes;
static int done_status = 1;

static void on_progress(struct cwb_download *download, uint64_t come_bytes) {
    (void)download;
    assert_int_equal(done_status, 1);
    told_bytes = come_bytes;
}

static void on_done(struct cwb_download *download, int status) {
    (void)download;
    done_status = status;
}

static void all_is_told_before_the_end(void **state) {
    (void)state;
    struct cwb_bridge *bridge = calloc(1, sizeof *bridge);
    struct cwb_peer *peer = calloc(1, sizeof *peer);
    assert_true(bridge && peer);
    bridge->options.streams = 2;
    peer->run = 7;
    struct cwb_download download = {.on_done = on_done,
                                    .on_progress = on_progress,
                                    .bridge = bridge,
                                    .peer = peer,
                                    .source = 1,
                                    .size_bytes = SIZE,
                                    .progress_bytes = 1 << 20};
    cwb_download_begin(&download, 7);
    struct cwb_transfer_plan *plan = download.state->plan;
    struct cwb_read read;
    /* An I/O thread brings all; the loop, which something else has woken, finds it whole and has
     * the answer to its CLOSE before the I/O thread has said a word. */
    while (cwb_transfer_plan_ask(plan, &read))
        (void)cwb_transfer_plan_here(plan, &read);
    assert_true(cwb_transfer_plan_whole(plan));
    cwb_transfer_plan_ref(plan);
    pump(download.state);
    assert_non_null(on_reply);
    struct cwb_frame answer = {.closed.hash = cwb_sum_digest(plan->sum)};
    on_reply(&closing, &answer);
    assert_int_equal(done_status, 0);
    assert_int_equal(told_bytes, SIZE);
    cwb_transfer_plan_unref(plan);
    free(peer);
    free(bridge);
}

/* So many as a stream asks for before anything is answered. */
static uint32_t asks(struct cwb_transfer_plan *plan, uint64_t *last) {
    struct cwb_read read;
    uint32_t count = 0;
    while (count < cwb_transfer_plan_share(plan, 8) && cwb_transfer_plan_ask(plan, &read)) {
        *last = read.offset_bytes / plan->chunk_bytes;
        count++;
    }
    return count;
}

static void streams_share_what_there_is(void **state) {
    (void)state;
    uint64_t last = 0;
    /* 8 streams, an array of 64 chunks: the first chunks are everybody's. */
    struct cwb_transfer_plan *plan =
        cwb_transfer_plan_new(NULL, NULL, NULL, 1, 64ull * CWB_READ_MAX, 0, CWB_READ_MAX);
    cwb_transfer_plan_readers(plan, 8);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(asks(plan, &last), 2);
    assert_int_equal(last, 15);
    cwb_transfer_plan_unref(plan);
    /* One that is long keeps all of them as busy as was agreed, to the last part of it. */
    plan = cwb_transfer_plan_new(NULL, NULL, NULL, 1, 1024ull * CWB_READ_MAX, 0, CWB_READ_MAX);
    cwb_transfer_plan_readers(plan, 8);
    while (last < 767)
        assert_int_equal(asks(plan, &last), 8);
    while (last < 1023)
        assert_in_range(asks(plan, &last), 1, 7);
    cwb_transfer_plan_unref(plan);
    /* Alone, and short. */
    plan = cwb_transfer_plan_new(NULL, NULL, NULL, 1, 3ull * CWB_READ_MAX, 0, CWB_READ_MAX);
    assert_int_equal(cwb_transfer_plan_share(plan, 8), 2);
    assert_int_equal(cwb_transfer_plan_share(plan, 1), 1);
    cwb_transfer_plan_unref(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_is_told_before_the_end),
                                       cmocka_unit_test(streams_share_what_there_is)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
