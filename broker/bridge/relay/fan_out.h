/*
 * Fan-out: a sealed array (CW_SEAL) of this node that many nodes want. This node sends its bytes to
 * as many as --fan-out says and refers each further one to a node that has them, or will: so 1,000
 * nodes have it by a tree, and none sends it to more than --fan-out others.
 *
 *   asker --OPEN, may be referred--> owner: the array's turn N, its secret; the bytes, or
 *         <--its digest, and the name of a node whose turn is earlier--
 *   asker --OPEN with turn and secret--> that node: its replica, once it is whole (relay.c)
 *   asker: reads it, checks the digest; else asks the owner again (redirect.c)
 *
 * What the array is, and that it is not what the name means any more, the asker hears from its
 * owner alone, as ever: it watches the name there, and has a link to it. Only the bytes come from
 * elsewhere.
 *
 * Invariants:
 *   - Sealed alone: of an array that is written to, a replica has the bytes of another moment than
 *     who asks now would get.
 *   - Who serves is not trusted: the asker takes the bytes only if they have the SHA-256 that the
 *     owner said. Whoever cannot bring them only costs time.
 *   - Who may read is decided by the owner: a random secret of each array is told to those whom it
 *     lets read, and a replica is given to those who know it. They could give the bytes away, too.
 *   - Nobody waits in a circle: each OPEN at the owner gets a later turn, and a node waits only for
 *     one whose turn is earlier than its own, on both sides: one whose own turn has become later
 *     refuses (relay.c).
 *   - Nobody waits for ever: a referral that fails is reported to the owner (CWB_FAILED), which
 *     refers nobody to that node any more; after CWB_REFERRALS_MAX of them the asker takes no
 *     referral, and the owner sends the bytes itself, whatever it has sent before.
 *   - Where all have sent --fan-out times (nodes that had it are gone), the one that has sent least
 *     is named: a bound that nobody can keep refuses nobody.
 *
 * Deaths. Who is referred to: its link breaks or cannot be made, or it says that it has nothing;
 * the asker asks the owner again. The asker: what it waits for at the other node ends with their
 * link, and its place here with ours (watch.c). The owner's bridge, or the link to it: replicas of
 * its names end at both others, so that one refuses and the other begins anew. The name means
 * another array: who holds it is told as ever; what is being read comes whole. A node that stands
 * (SIGSTOP) is silent: after 5 s its links end.
 *
 * Who holds it is who watches this put of the name: a holder goes with its watch. The loop's thread
 * owns all but the hashing, which holds the array by a lease of its own.
 */
#ifndef CW_BROKER_BRIDGE_RELAY_FAN_OUT_H
#define CW_BROKER_BRIDGE_RELAY_FAN_OUT_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/link/link.h"
#include "ipc/base/name_key.h"

#define CWB_FAN_OUT   16u           /* --fan-out: nodes to which one sends a sealed array itself */
#define CWB_RELAY_MIN (128u << 10)  /* smaller arrays cost less than to ask twice */
#define CWB_RELAY_MAX (16ull << 30) /* larger ones are not referred: some 1 s to hash a GiB */
#define CWB_RELAY_SLOWEST                                                                          \
    (4u << 20)               /* bytes a second: so slowly may the other node itself get it */
#define CWB_REFERRALS_MAX 4u /* of one array, that may fail */

/* An OPEN with CWB_REFER of this array, which is sealed, in host memory, and watched by the peer
 * from now on. true: the peer is referred elsewhere; it was answered, or will be when the array is
 * hashed, and the array is taken over. false: its bytes are to be sent from here; *referral goes
 * with the answer, unless its turn is 0. */
bool cwb_fan_out(struct cwb_link *link, const struct cwb_frame *frame, const struct cw_found *found,
                 cw_array *array, struct cwb_referral *referral);
/* From watch.c: the peer watches this put no more. */
void cwb_fan_out_leave(struct cwb_bridge *bridge, uint64_t entry, const struct cwb_peer *peer);

#endif
