/* Records as lines of JSON: the same text as encode.py writes without this file, which says what each part means. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <math.h>
#include <string.h>

typedef struct {
    char *data;
    Py_ssize_t size, room;
} Text;

static PyObject *leaf_type, *late_type; /* TensorLeaf, LateField */
static PyObject *encode_other, *encode_string, *encode_number, *encode_sharding; /* what encode.py does in the rare cases */

#define WORDS(DO)                                                                                                      \
    DO(type) DO(dtype) DO(shape) DO(value) DO(stats) DO(requires_grad) DO(digest) DO(digest_kind) DO(data_name)         \
    DO(source) DO(parameter) DO(tensor) DO(storage) DO(layout) DO(view_of) DO(starts_graph) DO(is_conjugated)           \
    DO(is_negated) DO(note) DO(sharding) DO(max) DO(min) DO(mean) DO(norm) DO(sketch) DO(nan_count) DO(inf_count)       \
    DO(reason) DO(resolve) DO(text)
#define DECLARE(word) static PyObject *word_##word;
WORDS(DECLARE)

static int put_tree(Text *text, PyObject *tree);

/* ---- text that grows; 0 after an error */

static int put(Text *text, const char *from, Py_ssize_t size) {
    if (text->size + size > text->room) {
        Py_ssize_t room = 2 * (text->size + size);
        char *data = PyMem_Realloc(text->data, (size_t)room);
        if (data == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        text->data = data;
        text->room = room;
    }
    memcpy(text->data + text->size, from, (size_t)size);
    text->size += size;
    return 1;
}

#define PUT(text, literal) put(text, literal, (Py_ssize_t)sizeof(literal) - 1)

/* What a function of encode.py makes of it, as it is. */
static int put_made(Text *text, PyObject *function, PyObject *argument) {
    PyObject *made = PyObject_CallFunctionObjArgs(function, argument, NULL);
    Py_ssize_t size;
    const char *bytes = made == NULL ? NULL : PyUnicode_AsUTF8AndSize(made, &size);
    int is_done = bytes != NULL && put(text, bytes, size);
    Py_XDECREF(made);
    return is_done;
}

static int is_simple(const char *bytes, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte < 0x20 || byte >= 0x7F || byte == '"' || byte == '\\') return 0;
    }
    return 1;
}

static int put_string(Text *text, PyObject *string) {
    Py_ssize_t size;
    const char *bytes = PyUnicode_Check(string) ? PyUnicode_AsUTF8AndSize(string, &size) : NULL;
    if (bytes == NULL) PyErr_Clear(); /* no string, or a lone surrogate: Python's json knows what to do */
    if (bytes == NULL || !is_simple(bytes, size)) return put_made(text, encode_string, string);
    return PUT(text, "\"") && put(text, bytes, size) && PUT(text, "\"");
}

static int put_double(Text *text, double number, char format, int precision, int flags) {
    char *digits = PyOS_double_to_string(number, format, precision, flags, NULL);
    if (digits == NULL) return 0;
    int is_done = put(text, digits, (Py_ssize_t)strlen(digits));
    PyMem_Free(digits);
    return is_done;
}

static int put_number(Text *text, PyObject *number) {
    if (number == Py_None) return PUT(text, "null");
    if (number == Py_True) return PUT(text, "true");
    if (number == Py_False) return PUT(text, "false");
    if (PyFloat_CheckExact(number)) {
        double value = PyFloat_AsDouble(number);
        if (isfinite(value)) return put_double(text, value, 'r', 0, Py_DTSF_ADD_DOT_0);
    } else if (PyLong_CheckExact(number)) {
        int is_large;
        long long value = PyLong_AsLongLongAndOverflow(number, &is_large);
        if (!is_large) {
            char digits[24];
            return put(text, digits, PyOS_snprintf(digits, sizeof(digits), "%lld", value));
        }
    }
    return put_made(text, encode_number, number); /* NaN, an infinity, something very large */
}

/* `open`, then the items with commas between them, then `close`. */
static int put_items(Text *text, PyObject *items, char open, char close, int (*put_item)(Text *, PyObject *)) {
    PyObject *list = PySequence_List(items);
    if (list == NULL) return 0;
    Py_ssize_t count = PyList_Size(list);
    int is_done = put(text, &open, 1);
    for (Py_ssize_t i = 0; is_done && i < count; i++)
        is_done = (i == 0 || PUT(text, ", ")) && put_item(text, PyList_GetItem(list, i));
    Py_DECREF(list);
    return is_done && put(text, &close, 1);
}

static int put_sketched(Text *text, PyObject *number) {
    double value = PyFloat_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred()) return 0;
    return put_double(text, value, 'g', 9, 0);
}

/* ---- the fields of a leaf: key and value, if it has any */

typedef int (*Put)(Text *, PyObject *);

/* The field of an object; then -1 after an error, 0 if it is None or false, 1 otherwise. */
static int get(PyObject *object, PyObject *word, PyObject **found) {
    *found = PyObject_GetAttr(object, word);
    if (*found == NULL) return -1;
    if (*found == Py_None || *found == Py_False) {
        Py_DECREF(*found);
        return 0;
    }
    return 1;
}

static int put_field(Text *text, PyObject *object, PyObject *word, const char *key, Put put_value) {
    PyObject *value;
    int has = get(object, word, &value);
    if (has <= 0) return has == 0;
    int is_done = put(text, key, (Py_ssize_t)strlen(key)) && put_value(text, value);
    Py_DECREF(value);
    return is_done;
}

static int put_true(Text *text, PyObject *value) {
    int is_true = PyObject_IsTrue(value);
    (void)text; /* the key says it all */
    return is_true >= 0;
}

static int put_count(Text *text, PyObject *object, PyObject *word, const char *key) {
    PyObject *count = PyObject_GetAttr(object, word);
    if (count == NULL) return 0;
    int is_some = PyObject_IsTrue(count);
    int is_done = is_some >= 0 && (!is_some || (put(text, key, (Py_ssize_t)strlen(key)) && put_number(text, count)));
    Py_DECREF(count);
    return is_done;
}

static int put_statistic(Text *text, PyObject *stats, PyObject *word, const char *key) {
    PyObject *number = PyObject_GetAttr(stats, word);
    if (number == NULL) return 0;
    int is_done = put(text, key, (Py_ssize_t)strlen(key)) && put_number(text, number);
    Py_DECREF(number);
    return is_done;
}

static int put_sketch(Text *text, PyObject *sketch) { return put_items(text, sketch, '[', ']', put_sketched); }

static int write_stats(Text *text, PyObject *stats) {
    return put_statistic(text, stats, word_max, "\"Max\": ") && put_statistic(text, stats, word_min, ", \"Min\": ") &&
           put_statistic(text, stats, word_mean, ", \"Mean\": ") &&
           put_statistic(text, stats, word_norm, ", \"Norm\": ") &&
           put_field(text, stats, word_sketch, ", \"Sketch\": ", put_sketch) &&
           put_count(text, stats, word_nan_count, ", \"nan_count\": ") &&
           put_count(text, stats, word_inf_count, ", \"inf_count\": ") &&
           put_field(text, stats, word_reason, ", \"reason\": ", put_string);
}

/* As they were written before, or as they are now, which is kept if the numbers are there. */
static int put_stats(Text *text, PyObject *stats) {
    PyObject *known, *largest;
    Py_ssize_t size;
    int has = get(stats, word_text, &known), is_done = has >= 0;
    if (has > 0) {
        const char *bytes = PyUnicode_AsUTF8AndSize(known, &size);
        is_done = bytes != NULL && put(text, bytes, size);
        Py_DECREF(known);
        return is_done;
    }
    Py_ssize_t start = text->size;
    if (!is_done || !write_stats(text, stats) || (largest = PyObject_GetAttr(stats, word_max)) == NULL) return 0;
    if (largest != Py_None) {
        known = PyUnicode_FromStringAndSize(text->data + start, text->size - start);
        is_done = known != NULL && PyObject_SetAttr(stats, word_text, known) == 0;
        Py_XDECREF(known);
    }
    Py_DECREF(largest);
    return is_done;
}

static int put_sizes(Text *text, PyObject *sizes) { return put_items(text, sizes, '[', ']', put_number); }

static int put_layout(Text *text, PyObject *layout) {
    PyObject *offset = PySequence_GetItem(layout, 0), *strides = PySequence_GetItem(layout, 1);
    int is_done = offset != NULL && strides != NULL && put_number(text, offset) && PUT(text, ", \"stride\": ") &&
                  put_sizes(text, strides);
    Py_XDECREF(offset);
    Py_XDECREF(strides);
    return is_done;
}

static int put_place(Text *text, PyObject *leaf, PyObject *storage) {
    return PUT(text, ", \"storage\": ") && put_number(text, storage) &&
           put_field(text, leaf, word_layout, ", \"offset\": ", put_layout) &&
           put_field(text, leaf, word_view_of, ", \"view_of\": ", put_number) &&
           put_field(text, leaf, word_starts_graph, ", \"starts_graph\": true", put_true) &&
           put_field(text, leaf, word_is_conjugated, ", \"conjugated\": true", put_true) &&
           put_field(text, leaf, word_is_negated, ", \"negated\": true", put_true);
}

static int put_digest(Text *text, PyObject *value, PyObject *digest) {
    PyObject *kind = PyObject_GetAttr(value, word_digest_kind);
    int is_done = kind != NULL && PUT(text, ", ") && put_string(text, kind) && PUT(text, ": ") && put_string(text, digest);
    Py_XDECREF(kind);
    return is_done;
}

static int put_requires_grad(Text *text, PyObject *leaf) {
    PyObject *requires = PyObject_GetAttr(leaf, word_requires_grad);
    if (requires == NULL) return 0;
    int is_true = requires == Py_None ? 0 : PyObject_IsTrue(requires), is_done = is_true >= 0;
    if (is_done && requires != Py_None)
        is_done = is_true ? PUT(text, ", \"requires_grad\": true") : PUT(text, ", \"requires_grad\": false");
    Py_DECREF(requires);
    return is_done;
}

static int put_sharding(Text *text, PyObject *sharding) { return put_made(text, encode_sharding, sharding); }

static int put_value(Text *text, PyObject *leaf, PyObject *value) {
    PyObject *digest, *storage;
    int has = put_field(text, value, word_stats, ", ", put_stats) && put_requires_grad(text, leaf)
                  ? get(value, word_digest, &digest)
                  : -1;
    if (has > 0) {
        has = put_digest(text, value, digest) ? 1 : -1;
        Py_DECREF(digest);
    }
    if (has < 0 || !put_field(text, leaf, word_data_name, ", \"data_name\": ", put_string) ||
        !put_field(text, leaf, word_source, ", \"source\": ", put_string) ||
        !put_field(text, leaf, word_parameter, ", \"parameter\": ", put_string) ||
        !put_field(text, leaf, word_tensor, ", \"tensor\": ", put_number))
        return 0;
    has = get(leaf, word_storage, &storage);
    if (has > 0) {
        has = put_place(text, leaf, storage) ? 1 : -1;
        Py_DECREF(storage);
    }
    return has >= 0 && put_field(text, leaf, word_note, ", \"note\": ", put_string) &&
           put_field(text, leaf, word_sharding, ", ", put_sharding) && PUT(text, "}");
}

static int put_leaf(Text *text, PyObject *leaf) {
    PyObject *value = PyObject_GetAttr(leaf, word_value);
    int is_done = value != NULL && put_field(text, leaf, word_type, "{\"type\": ", put_string) &&
                  put_field(text, leaf, word_dtype, ", \"dtype\": ", put_string) &&
                  put_field(text, leaf, word_shape, ", \"shape\": ", put_sizes) && put_value(text, leaf, value);
    Py_XDECREF(value);
    return is_done;
}

/* ---- trees */

static int put_dict(Text *text, PyObject *dict) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    int is_first = 1;
    if (!PUT(text, "{")) return 0;
    while (PyDict_Next(dict, &position, &key, &item)) {
        Py_INCREF(key); /* a field that resolves late runs Python, which may change what is around it */
        Py_INCREF(item);
        int is_done = (is_first || PUT(text, ", ")) && put_string(text, key) && PUT(text, ": ") && put_tree(text, item);
        Py_DECREF(key);
        Py_DECREF(item);
        if (!is_done) return 0;
        is_first = 0;
    }
    return PUT(text, "}");
}

static int put_late(Text *text, PyObject *late) {
    PyObject *tree = PyObject_CallMethodObjArgs(late, word_resolve, NULL);
    int is_done = tree != NULL && put_tree(text, tree);
    Py_XDECREF(tree);
    return is_done;
}

static int put_inner(Text *text, PyObject *tree) {
    if ((PyObject *)Py_TYPE(tree) == leaf_type) return put_leaf(text, tree);
    if (PyUnicode_CheckExact(tree)) return put_string(text, tree);
    if (tree == Py_None || PyBool_Check(tree) || PyLong_CheckExact(tree) || PyFloat_CheckExact(tree))
        return put_number(text, tree);
    if (PyList_CheckExact(tree)) return put_items(text, tree, '[', ']', put_tree);
    if (PyDict_CheckExact(tree)) return put_dict(text, tree);
    int is_late = PyObject_IsInstance(tree, late_type);
    if (is_late < 0) return 0;
    return is_late ? put_late(text, tree) : put_made(text, encode_other, tree);
}

static int put_tree(Text *text, PyObject *tree) {
    if (Py_EnterRecursiveCall(" in a record")) return 0;
    int is_done = put_inner(text, tree);
    Py_LeaveRecursiveCall();
    return is_done;
}

static PyObject *native_encode_tree(PyObject *self, PyObject *tree) {
    PyObject *line = NULL;
    Text text = {NULL, 0, 0};
    (void)self;
    if (put_tree(&text, tree)) line = PyUnicode_FromStringAndSize(text.data, text.size);
    PyMem_Free(text.data);
    return line;
}

static PyObject *native_prepare(PyObject *self, PyObject *arguments) {
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOO", &leaf_type, &late_type, &encode_other, &encode_string, &encode_number,
                          &encode_sharding))
        return NULL;
    Py_INCREF(leaf_type);
    Py_INCREF(late_type);
    Py_INCREF(encode_other);
    Py_INCREF(encode_string);
    Py_INCREF(encode_number);
    Py_INCREF(encode_sharding);
#define INTERN(word)                                                                                                   \
    if ((word_##word = PyUnicode_InternFromString(#word)) == NULL) return NULL;
    WORDS(INTERN)
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"prepare", native_prepare, METH_VARARGS,
     "prepare(leaf_type, late_type, encode_other, encode_string, encode_number, encode_sharding): once, before the rest"},
    {"encode_tree", native_encode_tree, METH_O, "encode_tree(tree): nested lists and dicts with leaves in them, as JSON"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_encode", "Records as text, compiled.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__encode(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", 1) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
