/* Is a tensor a value that is known, and which tensor is it? The hot part of value.py, identity.py and reader.py, which
   say what everything means, and do the same without this file. Knows torch only by the words of its Python interface:
   what is rare is left to them. */

#include "_look_value.h"
#include "_look_sum.h"

static PyObject *native_find(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    PyObject *found;
    Look look;
    (void)self;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "find takes a table, a tensor and who made it");
    int answer = find(arguments[0], arguments[1], arguments[2], &look);
    if (answer < 0) return NULL;
    if (answer == 0) return PyTuple_Pack(3, Py_None, Py_None, no_layout);
    found = PyTuple_Pack(3, look.value == NULL ? Py_None : look.value, look.known, look.layout);
    look_away(&look);
    return found;
}

/* ---- identity.py */

static PyObject *node_number(PyObject *numbers, PyObject *node) {
    PyObject *metadata = PyObject_GetAttr(node, word_metadata), *found;
    if (metadata == NULL) return NULL;
    found = PyDict_GetItemWithError(metadata, node_key);
    if (found != NULL)
        Py_INCREF(found);
    else if (!PyErr_Occurred() && (found = next_of(numbers, word_nodes)) != NULL && PyDict_SetItem(metadata, node_key, found) < 0)
        Py_CLEAR(found);
    Py_DECREF(metadata);
    return found;
}

/* Where in the graph of gradients, and how in its storage, a tensor is. */
static PyObject *place_of(PyObject *numbers, PyObject *tensor, PyObject *layout, PyObject *node, PyObject *requires_grad) {
    PyObject *lies = PyObject_GetAttr(layout, word_place), *number = NULL, *output = NULL, *place = NULL;
    if (lies == NULL) return NULL;
    if (node == Py_None) {
        place = PyTuple_Pack(2, lies, requires_grad);
    } else if ((number = node_number(numbers, node)) != NULL && (output = PyObject_GetAttr(tensor, word_output_nr)) != NULL) {
        place = PyTuple_Pack(3, lies, number, output);
    }
    Py_DECREF(lies);
    Py_XDECREF(number);
    Py_XDECREF(output);
    return place;
}

/* The number that a tensor had before it was written to; a new one otherwise. */
static PyObject *move(PyObject *numbers, PyObject *by_place, PyObject *seen, PyObject *layout) {
    if (seen != NULL) { /* how it lay there, and its place then */
        PyObject *before = item_of(seen, 0), *place = item_of(seen, 1), *lay, *lies, *number = NULL;
        if (before == NULL || place == NULL || (lay = PyObject_GetAttr(before, word_place)) == NULL) return NULL;
        lies = PyObject_GetAttr(layout, word_place);
        Py_DECREF(lay); /* `before` holds it */
        Py_XDECREF(lies);
        if (lies == lay && compare_numbers(item_of(before, 0), item_of(layout, 0)) == -1 &&
            (number = PyDict_GetItemWithError(by_place, place)) != NULL) {
            Py_INCREF(number);
            if (PyDict_DelItem(by_place, place) < 0) Py_CLEAR(number);
            return number;
        }
        if (PyErr_Occurred()) return NULL;
    }
    return next_of(numbers, word_numbers);
}

/* The number of a tensor; `is_new` if it had none. `known` are the tensors of its storage. */
static PyObject *number_of(PyObject *numbers, PyObject *tensor, PyObject *known, PyObject *layout, PyObject *node,
                           PyObject *requires_grad, int *is_new) {
    PyObject *by_place = PyObject_GetAttr(known, word_by_place), *by_address = PyObject_GetAttr(known, word_by_address);
    PyObject *address = PyObject_GetAttr(tensor, word__cdata), *place = NULL, *number = NULL, *seen = NULL;
    *is_new = 0;
    if (by_place == NULL || by_address == NULL || address == NULL ||
        (place = place_of(numbers, tensor, layout, node, requires_grad)) == NULL)
        goto end;
    number = PyDict_GetItemWithError(by_place, place);
    if (number != NULL) {
        Py_INCREF(number);
    } else if (!PyErr_Occurred()) {
        Py_ssize_t before = PyDict_Size(by_place);
        seen = PyDict_GetItemWithError(by_address, address);
        if (seen != NULL || !PyErr_Occurred()) number = move(numbers, by_place, seen, layout);
        if (number != NULL && PyDict_SetItem(by_place, place, number) < 0) Py_CLEAR(number);
        *is_new = before > 0 && PyDict_Size(by_place) > before;
    }
    if (number != NULL && (seen = PyTuple_Pack(2, layout, place)) != NULL) {
        if (PyDict_SetItem(by_address, address, seen) < 0) Py_CLEAR(number);
        Py_DECREF(seen);
    }
end:
    Py_XDECREF(by_place);
    Py_XDECREF(by_address);
    Py_XDECREF(address);
    Py_XDECREF(place);
    return number;
}

/* ---- reader.py */

/* Who made a value; borrowed from `known`, which holds it. */
static int tell_source(PyObject *leaf, PyObject *known, PyObject *layout, PyObject *produced_by, PyObject *node,
                       int requires_grad) {
    PyObject *sources = PyObject_GetAttr(known, word_sources), *source = NULL;
    int answer = sources == NULL ? -1 : 0;
    if (answer == 0 && PyDict_Size(sources) > 0) source = PyDict_GetItemWithError(sources, layout);
    if (source != NULL)
        Py_INCREF(source);
    else if (answer == 0 && !PyErr_Occurred())
        source = PyObject_GetAttr(known, word_writer);
    Py_XDECREF(sources);
    if (source == NULL) return -1;
    if (source == Py_None) {
        answer = PyObject_SetAttr(leaf, word_source, Py_None);
    } else {
        int is_own = produced_by == Py_None ? 0 : PyObject_RichCompareBool(source, produced_by, Py_EQ);
        answer = is_own < 0 ? -1 : PyObject_SetAttr(leaf, word_source, is_own ? Py_None : source);
        Py_ssize_t is_made = PyUnicode_Tailmatch(source, forward_ending, 0, PY_SSIZE_T_MAX, 1);
        if (is_made < 0) answer = -1;
        if (answer == 0 && is_made) {
            int is_exposed = is(known, word_is_exposed);
            if (is_exposed < 0 || (!is_exposed && PyObject_SetAttr(leaf, word_is_leaf, Py_False) < 0)) answer = -1;
            if (node == Py_None && requires_grad && PyObject_SetAttr(leaf, word_starts_graph, Py_True) < 0) answer = -1;
        }
    }
    Py_DECREF(source);
    return answer;
}

static int tell_parameter(PyObject *reader, PyObject *leaf, PyObject *tensor) {
    PyObject *names = PyObject_GetAttr(reader, word_parameter_names), *address = PyLong_FromVoidPtr(tensor), *name = NULL;
    if (names != NULL && address != NULL) {
        name = PyObject_GetItem(names, address);
        if (name == NULL && PyErr_ExceptionMatches(PyExc_KeyError)) {
            PyErr_Clear();
            if ((PyObject *)Py_TYPE(tensor) == parameter_type)
                name = PyObject_CallMethodObjArgs(reader, word_find_parameter, tensor, NULL);
            else {
                name = Py_None;
                Py_INCREF(name);
            }
        }
    }
    int answer = name == NULL ? -1 : name == Py_None ? 0 : PyObject_SetAttr(leaf, word_parameter, name);
    Py_XDECREF(names);
    Py_XDECREF(address);
    Py_XDECREF(name);
    return answer;
}

/* How it lies in its storage, and what else its layout says. */
static int tell_layout(PyObject *leaf, PyObject *layout) {
    PyObject *offset = item_of(layout, 1), *dtype = item_of(layout, 4), *note;
    int is_plain = PyObject_IsTrue(offset) ? 0 : is(layout, word_is_contiguous), answer = is_plain < 0 ? -1 : 0;
    if (is_plain == 0) {
        PyObject *place = PyTuple_Pack(2, offset, item_of(layout, 3));
        answer = place == NULL ? -1 : PyObject_SetAttr(leaf, word_layout, place);
        Py_XDECREF(place);
    }
    if (answer == 0 && (item_of(layout, 5) != Py_False || item_of(layout, 6) != Py_False))
        answer = PyObject_SetAttr(leaf, word_is_conjugated, item_of(layout, 5)) < 0
                     ? -1
                     : PyObject_SetAttr(leaf, word_is_negated, item_of(layout, 6));
    note = answer == 0 ? PyDict_GetItemWithError(quantized, dtype) : NULL;
    if (note != NULL) answer = PyObject_SetAttr(leaf, word_note, note);
    return PyErr_Occurred() ? -1 : answer;
}

static int tell_kind(PyObject *leaf, PyObject *layout, PyObject *requires_grad, PyObject *value) {
    PyObject *dtype = item_of(layout, 4), *name = PyDict_GetItemWithError(dtype_names, dtype);
    if (name != NULL)
        Py_INCREF(name);
    else if (PyErr_Occurred() || (name = PyObject_Str(dtype)) == NULL)
        return -1;
    else if (PyDict_SetItem(dtype_names, dtype, name) < 0) {
        Py_DECREF(name);
        return -1;
    }
    int answer = PyObject_SetAttr(leaf, word_type, torch_tensor) < 0 || PyObject_SetAttr(leaf, word_dtype, name) < 0 ||
                         PyObject_SetAttr(leaf, word_shape, item_of(layout, 2)) < 0 ||
                         PyObject_SetAttr(leaf, word_requires_grad, requires_grad) < 0 ||
                         PyObject_SetAttr(leaf, word_value, value) < 0
                     ? -1
                     : 0;
    Py_DECREF(name);
    return answer;
}

/* Which tensor it is. */
static int tell_tensor(PyObject *reader, PyObject *leaf, PyObject *tensor, PyObject *known, PyObject *layout,
                       PyObject *produced_by, PyObject *node, PyObject *requires_grad) {
    PyObject *numbers = PyObject_GetAttr(reader, word_numbers), *number = NULL, *storage = NULL, *base;
    int is_new = 0, answer = -1;
    if (numbers != NULL) number = number_of(numbers, tensor, known, layout, node, requires_grad, &is_new);
    if (number != NULL && (storage = PyObject_GetAttr(known, word_number)) != NULL)
        answer = PyObject_SetAttr(leaf, word_tensor, number) < 0 ? -1 : PyObject_SetAttr(leaf, word_storage, storage);
    if (answer == 0 && is_new && produced_by == Py_None && (answer = tells(tensor, word__is_view)) > 0) {
        base = PyObject_CallMethodObjArgs(numbers, word_find_base, tensor, known, NULL);
        answer = base == NULL ? -1 : PyObject_SetAttr(leaf, word_view_of, base);
        Py_XDECREF(base);
    }
    Py_XDECREF(numbers);
    Py_XDECREF(number);
    Py_XDECREF(storage);
    return answer;
}

/* What node.py says. */
static PyObject *find_node(PyObject *tensor) {
    PyObject *node = PyObject_GetAttr(tensor, word_grad_fn);
    if (node == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear();
        Py_INCREF(Py_None);
        return Py_None;
    }
    return node;
}

static PyObject *make_leaf(PyObject *reader, PyObject *tensor, PyObject *value, PyObject *known, PyObject *layout,
                           PyObject *produced_by) {
    PyObject *leaf = NULL, *requires_grad = NULL, *node = find_node(tensor);
    if (node == Py_None)
        requires_grad = PyObject_GetAttr(tensor, word_requires_grad);
    else if (node != NULL)
        requires_grad = PyBool_FromLong(1);
    if (requires_grad != NULL)
        leaf = new_leaf((PyTypeObject *)leaf_type, nothing, NULL);
    if (leaf != NULL && (tell_kind(leaf, layout, requires_grad, value) < 0 ||
                         tell_source(leaf, known, layout, produced_by, node, requires_grad == Py_True) < 0 ||
                         tell_tensor(reader, leaf, tensor, known, layout, produced_by, node, requires_grad) < 0 ||
                         tell_parameter(reader, leaf, tensor) < 0 || tell_layout(leaf, layout) < 0))
        Py_CLEAR(leaf);
    Py_XDECREF(requires_grad);
    Py_XDECREF(node);
    return leaf;
}

static PyObject *native_make_leaf(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    if (count != 6 || !PyTuple_Check(arguments[4]) || PyTuple_Size(arguments[4]) != 7)
        return PyErr_Format(PyExc_TypeError, "make_leaf takes a reader, a tensor, its value, its storage, its layout, who made it");
    return make_leaf(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

/* Is this a place where nobody looks on, and is no memory undefined? */
static int is_quiet(PyObject *reader) {
    PyObject *undefined, *storages = NULL, *found;
    int answer;
    if ((answer = truth(PyObject_CallFunctionObjArgs(is_function_off, NULL))) <= 0) return answer;
    if ((answer = truth(PyObject_CallFunctionObjArgs(count_modes, NULL))) != 0) return answer < 0 ? -1 : 0;
    if ((found = PyObject_CallFunctionObjArgs(transforms, NULL)) == NULL) return -1;
    Py_DECREF(found);
    if (found != Py_None) return 0;
    if ((undefined = PyObject_GetAttr(reader, word_undefined)) != NULL) storages = PyObject_GetAttr(undefined, word_storages);
    Py_XDECREF(undefined);
    answer = truth(storages);
    return answer < 0 ? -1 : !answer;
}

/* A value that was not known: the reader makes it, and remembers it. */
static PyObject *new_value(PyObject *reader, PyObject *tensor, Look *look, PyObject *produced_by, int *is_storable) {
    PyObject *value = sum_up(reader, tensor, look, produced_by), *made;
    if (value != NULL || PyErr_Occurred()) return value;
    made = PyObject_CallMethodObjArgs(reader, word_make_value, tensor, look->known, look->layout, produced_by, NULL);
    value = made == NULL ? NULL : PyTuple_GetItem(made, 0);
    if (value != NULL) {
        *is_storable = PyTuple_GetItem(made, 1) == Py_None;
        Py_INCREF(value);
    }
    Py_XDECREF(made);
    return value;
}

static PyObject *read_any(PyObject *reader, PyObject *tensor, PyObject *produced_by) {
    return PyObject_CallMethodObjArgs(reader, word_read_any, tensor, produced_by, NULL);
}

/* At a quiet place. */
static PyObject *read_tensor(PyObject *reader, PyObject *tensor, PyObject *produced_by) {
    PyObject *value, *leaf = NULL, *table = PyObject_GetAttr(reader, word_values);
    Look look;
    int is_storable = 1, answer = table == NULL ? -1 : find(table, tensor, produced_by, &look);
    Py_XDECREF(table);
    if (answer <= 0) return answer < 0 ? NULL : read_any(reader, tensor, produced_by);
    value = look.value;
    if (value != NULL)
        Py_INCREF(value);
    else
        value = new_value(reader, tensor, &look, produced_by, &is_storable);
    if (value != NULL) leaf = make_leaf(reader, tensor, value, look.known, look.layout, produced_by);
    if (leaf != NULL && !is_storable && PyObject_SetAttr(leaf, word_is_storable, Py_False) < 0) Py_CLEAR(leaf);
    Py_XDECREF(value);
    look_away(&look);
    return leaf;
}

static PyObject *native_read(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "read takes a reader, a tensor and who made it");
    int answer = is_quiet(arguments[0]);
    if (answer < 0) return NULL;
    return (answer ? read_tensor : read_any)(arguments[0], arguments[1], arguments[2]);
}

/* ---- describe.py */

/* A leaf for an argument that holds no others; NULL without an error where it is none of the usual. */
static PyObject *describe_end(PyObject *reader, PyObject *item, PyObject *produced_by) {
    PyObject *kind = (PyObject *)Py_TYPE(item);
    const char *name = PyBool_Check(item) ? "bool" : PyLong_CheckExact(item) ? "int" : PyFloat_CheckExact(item) ? "float" : "str";
    if (kind == tensor_type || kind == parameter_type) return read_tensor(reader, item, produced_by);
    if (item == Py_None) {
        Py_INCREF(item);
        return item;
    }
    if (name[0] == 's' && (!PyUnicode_CheckExact(item) || PyUnicode_GetLength(item) > MAX_TEXT)) return NULL;
    return Py_BuildValue("{sssO}", "type", name, "value", item);
}

static PyObject *describe_list(PyObject *reader, PyObject *items, PyObject *produced_by) {
    Py_ssize_t count = PySequence_Size(items);
    PyObject *leaves = count < 0 || count > MAX_ITEMS ? NULL : PyList_New(count);
    for (Py_ssize_t i = 0; leaves != NULL && i < count; i++) {
        PyObject *item = PySequence_GetItem(items, i), *leaf = item == NULL ? NULL : describe_end(reader, item, produced_by);
        Py_XDECREF(item);
        if (leaf == NULL)
            Py_CLEAR(leaves);
        else
            PyList_SetItem(leaves, i, leaf); /* takes it */
    }
    return leaves;
}

static PyObject *describe_dict(PyObject *reader, PyObject *items, PyObject *produced_by) {
    PyObject *leaves = PyDict_New(), *name, *item;
    Py_ssize_t position = 0;
    while (leaves != NULL && PyDict_Next(items, &position, &name, &item)) {
        Py_INCREF(name);
        Py_INCREF(item);
        PyObject *leaf = PyUnicode_CheckExact(name) ? describe_end(reader, item, produced_by) : NULL;
        if (leaf == NULL || PyDict_SetItem(leaves, name, leaf) < 0) Py_CLEAR(leaves);
        Py_XDECREF(leaf);
        Py_DECREF(name);
        Py_DECREF(item);
    }
    return leaves;
}

/* Is everything in it an end that `describe_end` knows? Nothing is read before that is certain. */
static int is_flat(PyObject *tree) {
    PyObject *items = PyDict_CheckExact(tree) ? PyDict_Values(tree) : NULL, *list = items == NULL ? tree : items;
    Py_ssize_t count = PySequence_Size(list);
    int answer = count < 0 || PyErr_Occurred() ? -1 : count <= MAX_ITEMS;
    for (Py_ssize_t i = 0; answer > 0 && i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i), *kind = item == NULL ? NULL : (PyObject *)Py_TYPE(item);
        answer = item == NULL ? -1 : kind == tensor_type || kind == parameter_type || item == Py_None || PyBool_Check(item) ||
                 PyLong_CheckExact(item) || PyFloat_CheckExact(item) ||
                 (PyUnicode_CheckExact(item) && PyUnicode_GetLength(item) <= MAX_TEXT);
        Py_XDECREF(item);
    }
    Py_XDECREF(items);
    return answer;
}

static PyObject *native_describe_flat(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    PyObject *leaves = NULL;
    (void)self;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "describe_flat takes a reader, a tree and who made it");
    PyObject *tree = arguments[1];
    int is_dict = PyDict_CheckExact(tree), answer = 0;
    if (is_dict || PyTuple_CheckExact(tree) || PyList_CheckExact(tree)) answer = is_flat(tree);
    if (answer > 0) answer = is_quiet(arguments[0]);
    if (answer > 0) leaves = (is_dict ? describe_dict : describe_list)(arguments[0], tree, arguments[2]);
    if (leaves != NULL || PyErr_Occurred()) return leaves;
    Py_RETURN_NONE;
}

static PyObject *native_prepare(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    PyObject **places[] = {&tensor_type, &parameter_type, &leaf_type, &is_wrapped, &is_identifiable, &complex_dtypes,
                           &graph_task, &quantized, &node_key, &no_layout, &layouts, &add_layout,
                           &known_type, &is_grad_enabled, &free_reference, &is_expired, &is_function_off, &count_modes,
                           &transforms, &value_type, &summarize};
    (void)self;
    if (count != (Py_ssize_t)(sizeof(places) / sizeof(*places))) return PyErr_Format(PyExc_TypeError, "prepare takes twenty-one");
    WORDS(INTERN)
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(arguments[i]);
        *places[i] = arguments[i];
    }
    new_leaf = (newfunc)PyType_GetSlot((PyTypeObject *)leaf_type, Py_tp_new);
    make_value = (newfunc)PyType_GetSlot((PyTypeObject *)value_type, Py_tp_new);
    torch_tensor = PyUnicode_InternFromString("torch.Tensor");
    forward_ending = PyUnicode_InternFromString(".forward");
    recompute_ending = PyUnicode_InternFromString(".recompute");
    reference_type = PyType_FromSpec(&REFERENCE);
    dtype_names = PyDict_New();
    nothing = PyTuple_New(0);
    if (torch_tensor == NULL || forward_ending == NULL || recompute_ending == NULL || reference_type == NULL || dtype_names == NULL || nothing == NULL) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"prepare", FAST(native_prepare), "prepare(…): what torch and the rest of capture give, once, before the rest"},
    {"find", FAST(native_find), "find(table, tensor, produced_by): ValueTable.find"},
    {"make_leaf", FAST(native_make_leaf), "make_leaf(reader, tensor, value, known, layout, produced_by): reader.make_leaf"},
    {"read", FAST(native_read), "read(reader, tensor, produced_by): TorchReader.read"},
    {"describe_flat", FAST(native_describe_flat),
     "describe_flat(reader, tree, produced_by): Describer.describe of usual ends alone; None for other trees"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_look", "Looking at tensors, compiled.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__look(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", 2) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
