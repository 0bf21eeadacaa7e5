/*
 * dispatch_messages.c: the messages of a `GroupEnd`, from one member to another, and objects of
 * all.
 *
 * Invariant: a message that was received is *in hand* until its receiver says that it is where it
 * is to be (`received`), or gives it back (`give_back`), after which it is received again in its
 * turn. So what a signal's handler raises in between loses none; who begins another call gives back
 * what is in hand. An object's message has a list, into which its receiver opens the handles in it,
 * and which it has again after it was given back: the first opening of a handle ends its transit
 * (cableway._core.leases.opened).
 *
 * Small plain objects (dispatch_small.c) go without a line of Python between the call and its end:
 * no handler runs there, and nothing has to be in hand. What they are, nobody else need know.
 *
 * Owner: the thread that uses the member; the GIL. Deaths: what is in hand goes with the process.
 */
#include "dispatch.h"

#define OBJECT      1u /* as in cableway._group.messages */
#define REFUSED     2u
#define SMALL_BYTES 256 /* as in cableway._group.pickles */

static void hand_end(GroupEnd *end) {
    cw_group_message_end(&end->hand);
    Py_CLEAR(end->hand_opened);
}

/* 0, or -1 with an exception: then the message is received again, and its handles are opened anew.
 */
static int hand_back(GroupEnd *end) {
    int code = 0;
    if (!end->hand.owner)
        return 0;
    if (end->hand_opened && PyList_Size(end->hand_opened) > 0) {
        PyObject *arrival = PyLong_FromUnsignedLongLong(end->hand.arrival);
        if (!end->opened)
            end->opened = PyDict_New();
        code = arrival && end->opened ? PyDict_SetItem(end->opened, arrival, end->hand_opened) : -1;
        Py_XDECREF(arrival);
    }
    cw_group_unreceive(end->group, &end->hand);
    Py_CLEAR(end->hand_opened);
    return code;
}

void group_forget_messages(GroupEnd *end) {
    hand_end(end);
    Py_CLEAR(end->opened);
}

/* Is it in hand still? A handler may have received it, or closed the group. */
static int is_in_hand(const GroupEnd *end, const cw_group_message *message) {
    return end->hand.owner && end->hand.arrival == message->arrival;
}

/* The list of a message that was given back, or a new one. */
static PyObject *opened_of(GroupEnd *end, uint64_t number) {
    PyObject *arrival = PyLong_FromUnsignedLongLong(number);
    PyObject *found = arrival && end->opened ? PyDict_GetItem(end->opened, arrival) : NULL;
    Py_XINCREF(found);
    if (found && PyDict_DelItem(end->opened, arrival))
        Py_CLEAR(found);
    Py_XDECREF(arrival);
    return found || PyErr_Occurred() ? found : PyList_New(0);
}

static PyObject *sent(GroupEnd *end, int code) {
    if (code && code != -EAGAIN)
        return group_failure(end, code);
    return PyBool_FromLong(code == 0);
}

/* left_ns: as for cw_group_limit_next(). */
static int send(cw_group *group, const void *data, uint64_t nbytes, unsigned kind, unsigned to,
                int tag, int waits, long long left_ns) {
    if (left_ns >= 0)
        cw_group_limit_next(group, left_ns);
    int code = waits ? cw_group_send(group, data, nbytes, kind, to, tag)
                     : cw_group_send_now(group, data, nbytes, kind, to, tag);
    cw_group_limit_next(group, -1); /* if the call was refused before it began */
    return code;
}

/* (address, nbytes, kind, to, tag, waits, left_ns): False: there is no room, and it does not wait.
 */
PyObject *group_send(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    unsigned long long address, nbytes;
    long long left_ns;
    unsigned kind, to;
    int tag, code, waits;
    if (!PyArg_ParseTuple(args, "KKIIipL", &address, &nbytes, &kind, &to, &tag, &waits, &left_ns))
        return NULL;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = send(end->group, (void *)(uintptr_t)address, nbytes, kind, to, tag, waits, left_ns);
    Py_END_ALLOW_THREADS;
    end->using --;
    return sent(end, code);
}

/* (bytes, kind, to, tag, waits, left_ns): the same. */
PyObject *group_send_bytes(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    const char *data;
    Py_ssize_t nbytes;
    long long left_ns;
    unsigned kind, to;
    int tag, code, waits;
    if (!PyArg_ParseTuple(args, "y#IIipL", &data, &nbytes, &kind, &to, &tag, &waits, &left_ns))
        return NULL;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = send(end->group, data, (uint64_t)nbytes, kind, to, tag, waits, left_ns);
    Py_END_ALLOW_THREADS;
    end->using --;
    return sent(end, code);
}

/*
 * (source, tag, kind, address, nbytes, left_ns): (source, tag, kind, nbytes, bytes, opened), and
 * the message is in hand. One of that kind and size is copied to the address, if there is one, and
 * comes without bytes; any other one is given back then, and comes without bytes too. Address 0: an
 * object, with its bytes and the list for what is open of it; a message of another kind is given
 * back. A reason why its sender could not send (kind REFUSED) comes as an object would.
 */
PyObject *group_receive(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    cw_group_message message = {.owner = NULL};
    unsigned long long address, nbytes;
    long long left_ns;
    int source, tag, code, fits, as_bytes;
    unsigned kind;
    if (!PyArg_ParseTuple(args, "iiIKKL", &source, &tag, &kind, &address, &nbytes, &left_ns) ||
        hand_back(end))
        return NULL;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    if (left_ns >= 0)
        cw_group_limit_next(end->group, left_ns);
    code = cw_group_receive(end->group, source, tag, &message);
    cw_group_limit_next(end->group, -1); /* if the call was refused before it began */
    as_bytes = !address || message.kind == REFUSED;
    fits = code == 0 && (message.kind == REFUSED ||
                         (message.kind == kind && (as_bytes || message.size_bytes == nbytes)));
    if (fits && !as_bytes)
        memcpy((void *)(uintptr_t)address, message.data, nbytes);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code)
        return group_failure(end, code);
    cw_group_message found = end->hand = message;
    PyObject *opened = opened_of(end, message.arrival), *data = Py_None;
    if (opened) {
        end->hand_opened = opened;
        Py_INCREF(opened);
    }
    if (!fits || !as_bytes)
        Py_INCREF(data);
    else
        data = PyBytes_FromStringAndSize(message.data, (Py_ssize_t)message.size_bytes);
    if (!opened || !data || PyErr_CheckSignals() || !is_in_hand(end, &found) ||
        (!fits && hand_back(end))) {
        Py_XDECREF(opened);
        Py_XDECREF(data);
        if (PyErr_Occurred()) {
            hand_back(end);
            return NULL;
        }
        return group_receive(self, args); /* which says if the group was closed */
    }
    return Py_BuildValue("(IiIKNN)", found.source, (int)found.tag, found.kind,
                         (unsigned long long)found.size_bytes, data, opened);
}

/* (source, tag, wait, left_ns): (source, tag, nbytes) of such a message, which stays; None: there
 * is none.
 */
PyObject *group_probe(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    cw_group_message found;
    int source, tag, wait, code;
    long long left_ns = -1;
    if (!PyArg_ParseTuple(args, "iii|L", &source, &tag, &wait, &left_ns) || hand_back(end))
        return NULL;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    if (left_ns >= 0)
        cw_group_limit_next(end->group, left_ns);
    code = cw_group_probe(end->group, source, tag, (enum cw_group_wait)wait, &found);
    cw_group_limit_next(end->group, -1);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code < 0)
        return group_failure(end, code);
    if (!code)
        Py_RETURN_NONE;
    return Py_BuildValue("(IiK)", found.source, (int)found.tag,
                         (unsigned long long)found.size_bytes);
}

PyObject *group_received(PyObject *self, PyObject *none) {
    (void)none;
    hand_end((GroupEnd *)self);
    Py_RETURN_NONE;
}

PyObject *group_give_back(PyObject *self, PyObject *none) {
    (void)none;
    if (hand_back((GroupEnd *)self))
        return NULL;
    Py_RETURN_NONE;
}

/* ---- small plain objects ---- */

/* Is it an int that C holds, from least on? */
static int number_of(PyObject *object, long least, int *out) {
    int overflow = 0;
    if (Py_TYPE(object) != &PyLong_Type)
        return 0;
    long value = PyLong_AsLongAndOverflow(object, &overflow);
    *out = (int)value;
    return !overflow && value >= least && value <= INT32_MAX;
}

/* (object, to, tag): True: it was sent; None: nothing was done, and Python sends it. */
PyObject *group_send_small(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    GroupEnd *end = (GroupEnd *)self;
    uint8_t data[SMALL_BYTES];
    int to, tag, code;
    Py_ssize_t nbytes = -1;
    if (count == 3 && end->group && number_of(args[1], 0, &to) && number_of(args[2], 0, &tag))
        nbytes = small_dump(args[0], data, sizeof data);
    if (nbytes < 0)
        Py_RETURN_NONE;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_send(end->group, data, (uint64_t)nbytes, OBJECT, (uint32_t)to, tag);
    Py_END_ALLOW_THREADS;
    end->using --;
    return sent(end, code);
}

/* (source, tag): (object, source, tag, nbytes); None: the next one is no small object, and Python
 * receives it. */
PyObject *group_receive_small(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    cw_group_message message = {.owner = NULL};
    uint8_t data[SMALL_BYTES]; /* out of the sender's reach */
    int source, tag, code;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "ii", &source, &tag) || hand_back(end))
        return NULL;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_receive(end->group, source, tag, &message);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code)
        return group_failure(end, code);
    if (message.kind == OBJECT && message.size_bytes <= sizeof data) {
        memcpy(data, message.data, message.size_bytes);
        PyObject *object = small_load(data, (uint32_t)message.size_bytes);
        if (object)
            found = Py_BuildValue("(NIiK)", object, message.source, (int)message.tag,
                                  (unsigned long long)message.size_bytes);
    }
    if (found) {
        cw_group_message_end(&message);
        return found;
    }
    cw_group_unreceive(end->group, &message);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* ---- objects of all ---- */

static PyObject *list_of(cw_group_part *parts, uint32_t count) {
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *item = Py_None;
        if (parts[i].data)
            item = PyBytes_FromStringAndSize(parts[i].data, (Py_ssize_t)parts[i].size_bytes);
        else
            Py_INCREF(item);
        if (!item || PyList_SetItem(list, i, item))
            Py_CLEAR(list);
    }
    return list;
}

/* (bytes, from, to, label): what each member sent, by rank; None: nothing, or not to us. -1: all.
 */
PyObject *group_exchange(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    const char *data;
    Py_ssize_t nbytes;
    int from, to, code;
    unsigned label;
    cw_group_part *parts = NULL;
    if (!PyArg_ParseTuple(args, "y#iiI", &data, &nbytes, &from, &to, &label))
        return NULL;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_exchange(end->group, data, (uint64_t)nbytes,
                             from < 0 ? CW_GROUP_ALL : (uint32_t)from,
                             to < 0 ? CW_GROUP_ALL : (uint32_t)to, label, &parts);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code)
        return group_failure(end, code);
    uint32_t count = cw_group_size(end->group);
    PyObject *list = list_of(parts, count);
    cw_group_parts_free(parts, count);
    return list;
}

/* The objects of all, by rank; NULL without an exception: one of them is no small one. */
static PyObject *small_list(cw_group_part *parts, uint32_t count) {
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *item = Py_None;
        if (parts[i].data && parts[i].size_bytes <= CW_GROUP_INLINE_MAX)
            item = small_load(parts[i].data, (uint32_t)parts[i].size_bytes);
        else if (parts[i].data)
            item = NULL;
        else
            Py_INCREF(item);
        if (!item || PyList_SetItem(list, i, item))
            Py_CLEAR(list);
    }
    PyErr_Clear();
    return list;
}

/* Of two numbers or texts, as operator.add, operator.mul, min and max; a new reference. */
static PyObject *combined(cw_reduction reduction, PyObject *a, PyObject *b) {
    if (reduction == CW_SUM)
        return PyNumber_Add(a, b);
    if (reduction == CW_PROD)
        return PyNumber_Multiply(a, b);
    int second = PyObject_RichCompareBool(b, a, reduction == CW_MIN ? Py_LT : Py_GT);
    PyObject *found = second > 0 ? b : a;
    if (second < 0)
        return NULL;
    Py_INCREF(found);
    return found;
}

/* One of all, from the first to the last; NULL without an exception: Python finds out why. */
static PyObject *folded(cw_reduction reduction, PyObject *list) {
    PyObject *found = PyList_GetItem(list, 0);
    Py_XINCREF(found);
    for (Py_ssize_t i = 1; found && i < PyList_Size(list); i++) {
        PyObject *next = combined(reduction, found, PyList_GetItem(list, i));
        Py_DECREF(found);
        found = next;
    }
    PyErr_Clear();
    return found;
}

/* What small objects of all become: (True, a list of them, or the one that an op makes of them);
 * else (False, the bytes of all). */
static PyObject *outcome_of(cw_group_part *parts, uint32_t count, cw_reduction reduction) {
    PyObject *found = small_list(parts, count);
    if (found && reduction) {
        PyObject *one = folded(reduction, found);
        Py_DECREF(found);
        found = one;
    }
    return found ? Py_BuildValue("(ON)", Py_True, found)
                 : Py_BuildValue("(ON)", Py_False, list_of(parts, count));
}

/* None, for all, or a rank? */
static int root_of(PyObject *given, int *out) {
    if (given == Py_None)
        return 1;
    if (Py_TYPE(given) != &PyLong_Type)
        return 0;
    long rank = PyLong_AsLong(given);
    PyErr_Clear();
    *out = (int)rank;
    return rank >= 0 && rank < CW_GROUP_RANKS_MAX;
}

/*
 * (object, from, to, label, op): an operation on small plain objects, and its barrier. (True, what
 * came of it); (False, the bytes of all): another one's is no small object, and Python goes on
 * before the barrier; None: nothing was done, and Python does all. from, to: None is all; op: a
 * name, or None.
 */
PyObject *group_objects(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    PyObject *object, *op, *giver, *receiver;
    uint8_t data[CW_GROUP_INLINE_MAX];
    int from = -1, to = -1, code;
    unsigned label;
    cw_group_part *parts = NULL;
    if (!PyArg_ParseTuple(args, "OOOIO", &object, &giver, &receiver, &label, &op))
        return NULL;
    if (!root_of(giver, &from) || !root_of(receiver, &to))
        Py_RETURN_NONE;
    const int rank = (int)cw_group_rank(end->group);
    const int sends = from < 0 || from == rank, receives = to < 0 || to == rank;
    const cw_reduction reduction = group_reduction_of(op);
    Py_ssize_t nbytes = sends ? small_dump(object, data, sizeof data) : 0;
    if (!end->group || nbytes < 0 ||
        (op != Py_None && !(reduction >= CW_SUM && reduction <= CW_MAX)))
        Py_RETURN_NONE;
    uint32_t met = cw_group_meetings(end->group), count = cw_group_size(end->group);
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_exchange(
        end->group, data, (uint64_t)nbytes, from < 0 ? CW_GROUP_ALL : (uint32_t)from,
        to < 0 ? CW_GROUP_ALL : (uint32_t)to, label | (uint32_t)reduction << 8, &parts);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code && !PyErr_Occurred() && cw_group_meetings(end->group) == met)
        Py_RETURN_NONE; /* Python calls it again, and tells the others */
    if (code)
        return group_failure(end, code);
    PyObject *found =
        receives ? outcome_of(parts, count, reduction) : Py_BuildValue("(OO)", Py_True, Py_None);
    cw_group_parts_free(parts, count);
    if (!found || PyTuple_GetItem(found, 0) != Py_True)
        return found;
    PyObject *done = group_barrier(self, NULL);
    if (!done)
        Py_CLEAR(found);
    Py_XDECREF(done);
    return found;
}
