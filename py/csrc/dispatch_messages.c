/*
 * dispatch_messages.c: the messages of a `GroupEnd`, from one member to another.
 *
 * Invariant: a message that was received is *in hand* until its receiver says that it is where it
 * is to be (`received`), or gives it back (`give_back`), after which it is received again in its
 * turn. So what a signal's handler raises in between loses none; who begins another call gives back
 * what is in hand. An object's message has a list, into which its receiver opens the handles in it,
 * and which it has again after it was given back: the first opening of a handle ends its transit
 * (cableway._core.leases.opened).
 *
 * Owner: the thread that uses the member; the GIL. Deaths: what is in hand goes with the process.
 */
#include "dispatch.h"

#define REFUSED 2u /* as in cableway._group.messages */

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
    PyObject *opened = NULL, *data = Py_None;
    if (PyErr_CheckSignals() || !(opened = opened_of(end, message.arrival))) {
        hand_back(end);
        return NULL;
    }
    end->hand_opened = opened;
    if (!fits || !as_bytes)
        Py_INCREF(data);
    else
        data = PyBytes_FromStringAndSize(message.data, (Py_ssize_t)message.size_bytes);
    Py_INCREF(opened);
    if ((!data || !fits) && hand_back(end))
        Py_CLEAR(data);
    if (!data) {
        Py_DECREF(opened);
        return NULL;
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
