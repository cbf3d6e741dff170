/* The part of _look.c that is value.py: what is known of a tensor's storage, and its layout. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

/* Attributes of tensors, storages and nodes; methods without arguments; attributes of our own objects. */
#define WORDS(DO)                                                                                                      \
    DO(layout) DO(is_inference) DO(_version) DO(_cdata) DO(shape) DO(dtype) DO(requires_grad) DO(grad_fn) DO(output_nr)    \
    DO(metadata) DO(untyped_storage) DO(resizable) DO(storage_offset) DO(stride) DO(is_conj)           \
    DO(is_neg) DO(_is_view) DO(is_contiguous) DO(_task) DO(_epoch) DO(_storages) DO(_sees_calls) DO(version) DO(epoch)  \
    DO(is_trusted) DO(is_exposed) DO(values) DO(sources) DO(writer) DO(place) DO(number) DO(by_place) DO(by_address)  \
    DO(numbers) DO(nodes) DO(parameter_names) DO(parameter) DO(type) DO(value) DO(source) DO(is_leaf) DO(starts_graph)  \
    DO(tensor) DO(storage) DO(view_of) DO(is_conjugated) DO(is_negated) DO(note) DO(restart) DO(expose) DO(forget)      \
    DO(trust_parameter) DO(_sweep) DO(_sweep_at) DO(_numbers)            \
    DO(is_backward_watched) DO(dim) DO(_weak_ref) DO(undefined) DO(storages) DO(read_any) DO(make_value) DO(is_storable)   \
    DO(find_base) DO(find_parameter) DO(sums_up) DO(is_in_line) DO(line) DO(nbytes) DO(dense_bytes) DO(any_order)      \
    DO(in_order) DO(stats) DO(is_cpu) DO(data_ptr) DO(digest) DO(digest_kind) DO(file_name) DO(md5) DO(reduce_line)
enum { MAX_ITEMS = 1000, MAX_TEXT = 1000 }; /* tree.py, describe.py */

#define DECLARE(word) static PyObject *word_##word;
WORDS(DECLARE)
#define INTERN(word)                                                                                                   \
    if ((word_##word = PyUnicode_InternFromString(#word)) == NULL) return NULL;
#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

static PyObject *tensor_type, *parameter_type, *leaf_type, *torch_tensor, *node_key, *forward_ending;
static newfunc new_leaf;
static PyObject *is_wrapped, *is_identifiable, *complex_dtypes, *graph_task, *dtype_names, *quantized, *nothing, *no_layout, *layouts, *add_layout;
static PyObject *known_type, *is_grad_enabled, *free_reference, *is_expired, *is_function_off, *count_modes, *transforms;
static PyObject *reference_type, *recompute_ending;

/* ---- small steps; NULL or -1 after an error */

static PyObject *ask(PyObject *object, PyObject *method) { return PyObject_CallMethodObjArgs(object, method, NULL); }

/* The truth of what was returned, which is let go. */
static int truth(PyObject *result) {
    if (result == NULL) return -1;
    int is_true = result == Py_True ? 1 : result == Py_False ? 0 : PyObject_IsTrue(result);
    Py_DECREF(result);
    return is_true;
}

static int is(PyObject *object, PyObject *attribute) { return truth(PyObject_GetAttr(object, attribute)); }

static int tells(PyObject *object, PyObject *method) { return truth(ask(object, method)); }

static int run(PyObject *object, PyObject *method, PyObject *first, PyObject *second) {
    PyObject *result = PyObject_CallMethodObjArgs(object, method, first, second, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* An attribute that is a small whole number, against another: below 0, 0, above 0; -2 after an error. */
static int compare_numbers(PyObject *left, PyObject *right) {
    long long one = PyLong_AsLongLong(left), other = PyLong_AsLongLong(right);
    if (PyErr_Occurred()) return -2;
    return one < other ? -1 : one > other;
}

static PyObject *item_of(PyObject *tuple, Py_ssize_t index) { return PyTuple_GetItem(tuple, index); } /* borrowed */

static PyObject *next_of(PyObject *numbers, PyObject *word) {
    PyObject *counter = PyObject_GetAttr(numbers, word), *next = counter == NULL ? NULL : PyIter_Next(counter);
    Py_XDECREF(counter);
    return next;
}

/* ---- value.py */

static PyObject *layout_of(PyObject *tensor, PyObject *version) {
    PyObject *key = PyTuple_New(7), *layout = NULL;
    if (key == NULL) return NULL;
    PyObject *items[7] = {version, NULL, NULL, NULL, NULL, NULL, NULL};
    Py_INCREF(version);
    items[1] = ask(tensor, word_storage_offset);
    if (items[1] != NULL) items[2] = PyObject_GetAttr(tensor, word_shape);
    if (items[2] != NULL) items[3] = ask(tensor, word_stride);
    if (items[3] != NULL) items[4] = PyObject_GetAttr(tensor, word_dtype);
    int is_complex = items[4] == NULL ? -1 : PySet_Contains(complex_dtypes, items[4]);
    if (is_complex >= 0) items[5] = is_complex ? ask(tensor, word_is_conj) : PyBool_FromLong(0);
    if (items[5] != NULL) items[6] = ask(tensor, word_is_neg);
    int is_whole = items[6] != NULL;
    for (Py_ssize_t i = 0; i < 7; i++)
        if (items[i] != NULL) PyTuple_SetItem(key, i, items[i]); /* takes it */
    if (is_whole && (layout = PyDict_GetItemWithError(layouts, key)) != NULL)
        Py_INCREF(layout);
    else if (is_whole && !PyErr_Occurred())
        layout = PyObject_CallFunctionObjArgs(add_layout, key, tensor, NULL);
    Py_DECREF(key);
    return layout;
}

/* How often it was written to: -1 of what is made in inference mode, where torch does not count that and refuses to be
   asked. */
static PyObject *version_of(PyObject *tensor) {
    PyObject *version = PyObject_GetAttr(tensor, word__version), *error, *value, *trace;
    if (version != NULL) return version;
    PyErr_Fetch(&error, &value, &trace);
    int is_inference = tells(tensor, word_is_inference);
    if (is_inference == 0) {
        PyErr_Restore(error, value, trace);
        return NULL;
    }
    Py_XDECREF(error);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return is_inference < 0 ? NULL : PyLong_FromLong(-1);
}

/* Has it a storage to be known by? Then 1, with that, its version and its layout. Most tensors that have none refuse to
   be asked for one of them: only then is it asked what they are. */
static int look_at(PyObject *tensor, PyObject **storage, PyObject **version, PyObject **layout) {
    PyObject *kind = (PyObject *)Py_TYPE(tensor), *error, *value, *trace;
    *storage = *version = *layout = NULL;
    if (kind != tensor_type && kind != parameter_type) return 0;
    int answer = truth(PyObject_CallFunctionObjArgs(is_wrapped, tensor, NULL));
    if (answer != 0) return answer < 0 ? -1 : 0;
    if ((*storage = ask(tensor, word_untyped_storage)) != NULL && (*version = version_of(tensor)) != NULL &&
        (*layout = layout_of(tensor, *version)) != NULL)
        return 1;
    Py_CLEAR(*storage);
    Py_CLEAR(*version);
    PyErr_Fetch(&error, &value, &trace);
    answer = truth(PyObject_CallFunctionObjArgs(is_identifiable, tensor, NULL));
    if (answer > 0) {
        PyErr_Restore(error, value, trace);
        return -1;
    }
    Py_XDECREF(error);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return answer;
}

/* A backward pass may have begun or ended. */
static int note_task(PyObject *table) {
    PyObject *task = PyObject_CallFunctionObjArgs(graph_task, NULL), *before = NULL, *epoch = NULL;
    int difference = -2;
    if (task != NULL && (before = PyObject_GetAttr(table, word__task)) != NULL)
        difference = compare_numbers(task, before);
    if (difference == -1 || difference == 1) {
        PyObject *old = PyObject_GetAttr(table, word__epoch);
        epoch = old == NULL ? NULL : PyLong_FromLongLong(PyLong_AsLongLong(old) + 1);
        Py_XDECREF(old);
        if (epoch == NULL || PyObject_SetAttr(table, word__task, task) < 0 || PyObject_SetAttr(table, word__epoch, epoch) < 0)
            difference = -2;
    }
    Py_XDECREF(task);
    Py_XDECREF(before);
    Py_XDECREF(epoch);
    return difference == -2 ? -1 : 0;
}

/* What is known of a storage that was seen before: is it still so? */
static int look_again(PyObject *table, PyObject *known, PyObject *version, PyObject *writer) {
    PyObject *seen = PyObject_GetAttr(known, word_version), *now = NULL, *then = NULL;
    int difference = seen == NULL ? -2 : compare_numbers(version, seen), is_done = -1;
    Py_XDECREF(seen);
    if (difference == -2) return -1;
    if (difference > 0 && run(known, word_restart, version, writer) < 0) return -1;
    if (difference < 0 && run(known, word_expose, NULL, NULL) < 0) return -1;
    if ((now = PyObject_GetAttr(table, word__epoch)) != NULL && (then = PyObject_GetAttr(known, word_epoch)) != NULL)
        difference = compare_numbers(now, then);
    if (then != NULL && difference != -2) {
        is_done = 0;
        if (difference != 0 && (PyObject_SetAttr(known, word_epoch, now) < 0 ||
                                PyObject_SetAttr(known, word_is_trusted, Py_False) < 0 ||
                                run(known, word_forget, NULL, NULL) < 0))
            is_done = -1;
    }
    Py_XDECREF(now);
    Py_XDECREF(then);
    return is_done;
}

/* ---- a weak reference to a storage: its address is not used again while there is one */

typedef struct {
    PyObject_HEAD
    PyObject *address;
} Reference;

static PyObject *refer_to(PyObject *storage) {
    Reference *reference = (Reference *)PyType_GenericAlloc((PyTypeObject *)reference_type, 0);
    if (reference == NULL) return NULL;
    reference->address = ask(storage, word__weak_ref);
    if (reference->address != NULL) return (PyObject *)reference;
    Py_DECREF(reference);
    return NULL;
}

static void let_go(PyObject *self) {
    PyObject *address = ((Reference *)self)->address, *kind = (PyObject *)Py_TYPE(self), *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    if (address != NULL) {
        PyObject *result = PyObject_CallFunctionObjArgs(free_reference, address, NULL);
        if (result == NULL) PyErr_WriteUnraisable(self);
        Py_XDECREF(result);
        Py_DECREF(address);
    }
    PyErr_Restore(error, value, trace);
    PyObject_Free(self);
    Py_DECREF(kind);
}

static PyObject *expired(PyObject *self, PyObject *none) {
    (void)none;
    return PyObject_CallFunctionObjArgs(is_expired, ((Reference *)self)->address, NULL);
}

static PyMethodDef REFERENCE_METHODS[] = {
    {"expired", expired, METH_NOARGS, "Is the storage gone?"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot REFERENCE_SLOTS[] = {
    {Py_tp_dealloc, let_go},
    {Py_tp_methods, REFERENCE_METHODS},
    {0, NULL},
};
static PyType_Spec REFERENCE = {"tensorprobe.capture.torch._look.StorageReference", sizeof(Reference), 0,
                                Py_TPFLAGS_DEFAULT, REFERENCE_SLOTS};

/* ---- a storage that is seen for the first time */

/* Can it be trusted? */
static int is_made_in_sight(PyObject *table, PyObject *tensor, PyObject *produced_by) {
    PyObject *task = PyObject_GetAttr(table, word__task);
    long long number = task == NULL ? -1 : PyLong_AsLongLong(task);
    int answer;
    Py_XDECREF(task);
    if (PyErr_Occurred()) return -1;
    if (number != -1) { /* with gradients it is a forward: a recomputation */
        answer = truth(PyObject_CallFunctionObjArgs(is_grad_enabled, NULL));
        if (answer <= 0) return answer < 0 ? -1 : is(table, word_is_backward_watched);
    }
    if (produced_by == Py_None) return 0;
    answer = (int)PyUnicode_Tailmatch(produced_by, forward_ending, 0, PY_SSIZE_T_MAX, 1);
    if (answer == 0) answer = (int)PyUnicode_Tailmatch(produced_by, recompute_ending, 0, PY_SSIZE_T_MAX, 1);
    if (answer <= 0) return answer;
    if (PyObject_SetAttr(table, word__sees_calls, Py_True) < 0) return -1;
    PyObject *dimensions = ask(tensor, word_dim);
    if (dimensions == NULL) return -1;
    number = PyLong_AsLongLong(dimensions);
    Py_DECREF(dimensions);
    return number != 1 ? 1 : is(tensor, word_requires_grad);
}

static int sweep(PyObject *table, PyObject *storages) {
    PyObject *limit = PyObject_GetAttr(table, word__sweep_at);
    if (limit == NULL) return -1;
    int is_full = PyDict_Size(storages) >= PyLong_AsSsize_t(limit);
    Py_DECREF(limit);
    return is_full ? run(table, word__sweep, NULL, NULL) : 0;
}

static PyObject *add_seen(PyObject *table, PyObject *storages, PyObject *storage, PyObject *address, PyObject *tensor,
                          PyObject *version, PyObject *writer) {
    PyObject *reference = NULL, *number = NULL, *epoch = NULL, *known = NULL;
    int is_trusted = is_made_in_sight(table, tensor, writer);
    if (is_trusted >= 0 && sweep(table, storages) == 0 && (reference = refer_to(storage)) != NULL &&
        (number = next_of(table, word__numbers)) != NULL && (epoch = PyObject_GetAttr(table, word__epoch)) != NULL)
        known = PyObject_CallFunctionObjArgs(known_type, reference, number, version, writer, epoch,
                                             is_trusted ? Py_True : Py_False, NULL);
    if (known != NULL && PyDict_SetItem(storages, address, known) < 0) Py_CLEAR(known);
    Py_XDECREF(reference);
    Py_XDECREF(number);
    Py_XDECREF(epoch);
    return known;
}

/* Note what can be seen of the storage of a tensor that was looked at: what is known of it now. */
static PyObject *observe(PyObject *table, PyObject *tensor, PyObject *storage, PyObject *version, PyObject *produced_by) {
    PyObject *address = NULL, *storages = NULL, *known = NULL;
    int answer = -1;
    if (note_task(table) == 0 && (address = PyObject_GetAttr(storage, word__cdata)) != NULL)
        storages = PyObject_GetAttr(table, word__storages);
    if (storages != NULL && (known = PyDict_GetItemWithError(storages, address)) != NULL) {
        Py_INCREF(known);
        answer = look_again(table, known, version, produced_by);
    } else if (storages != NULL && !PyErr_Occurred()) {
        known = add_seen(table, storages, storage, address, tensor, version, produced_by);
        answer = known == NULL ? -1 : 0;
    }
    if (answer == 0 && (answer = is(known, word_is_exposed)) == 0 &&
        (PyLong_AsLong(version) < 0 || (answer = tells(storage, word_resizable)) == 0))
        answer = run(known, word_expose, NULL, NULL);
    Py_XDECREF(address);
    Py_XDECREF(storages);
    if (answer >= 0) return known;
    Py_XDECREF(known);
    return NULL;
}

/* What a look at a tensor has found. */
typedef struct {
    PyObject *storage, *layout, *known; /* held */
    PyObject *value;                    /* borrowed from what is known; NULL where the value is not */
} Look;

static void look_away(Look *look) {
    Py_CLEAR(look->storage);
    Py_CLEAR(look->layout);
    Py_CLEAR(look->known);
}

/* 1 with what is found; 0 for a tensor that cannot be known. */
static int find(PyObject *table, PyObject *tensor, PyObject *produced_by, Look *look) {
    PyObject *version, *values;
    int answer = look_at(tensor, &look->storage, &version, &look->layout);
    look->value = look->known = NULL;
    if (answer <= 0) return answer;
    look->known = observe(table, tensor, look->storage, version, produced_by);
    Py_DECREF(version);
    answer = look->known == NULL ? -1 : is(look->known, word_is_trusted);
    if (answer == 0 && (PyObject *)Py_TYPE(tensor) == parameter_type && (answer = is(table, word__sees_calls)) > 0) {
        Py_CLEAR(look->storage); /* its holders are counted */
        answer = truth(PyObject_CallMethodObjArgs(table, word_trust_parameter, look->known, tensor, NULL));
        if (answer >= 0) look->storage = ask(tensor, word_untyped_storage);
    }
    if (answer > 0 && (values = PyObject_GetAttr(look->known, word_values)) != NULL) {
        look->value = PyDict_GetItemWithError(values, look->layout);
        Py_DECREF(values);
    }
    if (!PyErr_Occurred()) return 1;
    look_away(look);
    return -1;
}
