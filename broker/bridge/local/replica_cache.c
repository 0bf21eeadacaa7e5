/*
 * The replica cache: see replica_cache.h.
 */
#include "broker/bridge/local/replica_cache.h"

#include <stdlib.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/memory.h"
#include "shm/names/unnamed.h"

struct cwb_replica_cache {
    struct cw_segment segment;
    struct cwb_replica *at[CW_UNNAMED_RECORDS];
};

struct cwb_replica_cache *cwb_replica_cache_new(struct cwb_bridge *bridge) {
    struct cwb_replica_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        cwb_no_memory("the replica cache");
        return NULL;
    }
    if (cw_unnamed_new(cw_client_instance(bridge->client),
                       cwb_broker_channel_session(bridge->broker_channel), &cache->segment) == 0)
        return cache;
    free(cache);
    return NULL;
}

void cwb_replica_cache_here(const struct cwb_bridge *bridge) {
    if (bridge->replica_cache)
        cw_sleeper_here(cw_unnamed_bridge(&bridge->replica_cache->segment));
}

int cwb_replica_cache_fd(const struct cwb_bridge *bridge) {
    return bridge->replica_cache ? bridge->replica_cache->segment.fd : -1;
}

void cwb_replica_cache_add(struct cwb_replica *replica) {
    struct cwb_replica_cache *cache = replica->bridge->replica_cache;
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
    if (!cache || replica->on_gpu ||
        !cw_unnamed_put(&cache->segment, &entry, replica->key.text, replica->came))
        return;
    uint32_t index = cw_unnamed_index(replica->key.text, replica->key.length);
    if (cache->at[index])
        cache->at[index]->cached = 0;
    cache->at[index] = replica;
    replica->cached = index + 1;
}

void cwb_replica_cache_remove(struct cwb_replica *replica) {
    struct cwb_replica_cache *cache = replica->bridge->replica_cache;
    if (!replica->cached)
        return;
    cw_unnamed_erase(&cache->segment, replica->cached - 1);
    cache->at[replica->cached - 1] = NULL;
    replica->cached = 0;
}
