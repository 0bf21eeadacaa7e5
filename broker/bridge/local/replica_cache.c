/*
 * The board: see replica_cache.h.
 */
#include "broker/bridge/local/replica_cache.h"

#include <stdlib.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/memory.h"
#include "shm/names/unnamed.h"

struct cwb_board {
    struct cw_segment segment;
    struct cwb_replica *at[CW_BOARD_PLACES];
};

struct cwb_board *cwb_board_new(struct cwb_bridge *bridge) {
    struct cwb_board *board = calloc(1, sizeof *board);
    if (!board) {
        cwb_no_memory("the board");
        return NULL;
    }
    if (cw_board_new(cw_client_instance(bridge->client), cwb_home_session(bridge->home),
                     &board->segment) == 0)
        return board;
    free(board);
    return NULL;
}

void cwb_board_here(const struct cwb_bridge *bridge) {
    if (bridge->board)
        cw_sleeper_here(cw_board_bridge(&bridge->board->segment));
}

int cwb_board_fd(const struct cwb_bridge *bridge) {
    return bridge->board ? bridge->board->segment.fd : -1;
}

void cwb_board_post(struct cwb_replica *replica) {
    struct cwb_board *board = replica->bridge->board;
    const struct cw_put *put = &replica->put;
    struct cw_entry entry = {.id = (uint64_t)cw_now_ns(),
                             .slab = put->slab,
                             .block = put->block,
                             .gen = put->gen,
                             .offset_bytes = put->offset_bytes,
                             .size_bytes = put->size_bytes,
                             .flags = CW_ENTRY_REPLICA,
                             .key_bytes = (uint16_t)replica->key.length,
                             .meta_bytes = put->meta_bytes};
    if (!board || replica->on_gpu ||
        !cw_board_post(&board->segment, &entry, replica->key.text, replica->came))
        return;
    uint32_t place = cw_board_place(replica->key.text, replica->key.length);
    if (board->at[place])
        board->at[place]->posted = 0;
    board->at[place] = replica;
    replica->posted = place + 1;
}

void cwb_board_take_down(struct cwb_replica *replica) {
    struct cwb_board *board = replica->bridge->board;
    if (!replica->posted)
        return;
    cw_board_erase(&board->segment, replica->posted - 1);
    board->at[replica->posted - 1] = NULL;
    replica->posted = 0;
}
