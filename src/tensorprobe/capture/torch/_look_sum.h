/* The part of _look.c that is reader.py's `make_value`, of a usual value: its elements lie one after another, and there
   is nothing to compute of it but what one pass over them gives. */

enum { MAX_LAYOUTS = 256, IN_ONE_THREAD = 1 << 19 }; /* value.py, statistics.py */

static PyObject *value_type, *summarize;
static newfunc make_value;

/* ValueTable.remember: it is never asked for too many, because then they are forgotten. */
static int remember(PyObject *value, Look *look, PyObject *produced_by) {
    PyObject *writer = NULL, *sources = NULL, *values = NULL;
    int answer = 0;
    if (produced_by != Py_None) {
        writer = PyObject_GetAttr(look->known, word_writer);
        int is_other = writer == NULL ? -1 : PyObject_RichCompareBool(produced_by, writer, Py_NE);
        Py_XDECREF(writer);
        if (is_other < 0) return -1;
        if (is_other) {
            if ((sources = PyObject_GetAttr(look->known, word_sources)) == NULL) return -1;
            if (PyDict_Size(sources) >= MAX_LAYOUTS) PyDict_Clear(sources);
            int is_told = PyDict_Contains(sources, look->layout);
            answer = is_told < 0 ? -1 : is_told ? 0 : PyDict_SetItem(sources, look->layout, produced_by);
            Py_DECREF(sources);
        }
    }
    if (answer < 0 || (answer = is(look->known, word_is_trusted)) <= 0) return answer;
    if ((values = PyObject_GetAttr(look->known, word_values)) == NULL) return -1;
    answer = PyDict_Size(values) >= MAX_LAYOUTS ? run(look->known, word_forget, NULL, NULL) : 0;
    if (answer == 0) answer = PyDict_SetItem(values, look->layout, value);
    Py_DECREF(values);
    return answer;
}

/* Reducer.reduce_line. None where this is not the usual case. */
static PyObject *reduce_line(PyObject *reader, PyObject *tensor, PyObject *layout, PyObject *hashed) {
    PyObject *line = PyObject_GetAttr(layout, word_line), *address, *stats = NULL; /* count and kind */
    if (line == NULL) return NULL;
    int is_short = line != Py_None && hashed == Py_None && PyLong_AsLongLong(item_of(line, 0)) < IN_ONE_THREAD;
    if (is_short && summarize != Py_None && is(tensor, word_is_cpu) > 0) {
        if ((address = ask(tensor, word_data_ptr)) != NULL) {
            PyObject *one = PyLong_FromLong(1);
            if (one != NULL) stats = PyObject_CallFunctionObjArgs(summarize, address, item_of(line, 0), item_of(line, 1), one, NULL);
            Py_XDECREF(one);
            Py_DECREF(address);
        }
    } else if (!PyErr_Occurred()) {
        stats = PyObject_CallMethodObjArgs(reader, word_reduce_line, tensor, layout, hashed, NULL);
    }
    Py_DECREF(line);
    return stats;
}

static PyObject *start_value(PyObject *digest_kind) {
    PyObject *value = make_value((PyTypeObject *)value_type, nothing, NULL);
    if (value != NULL && (PyObject_SetAttr(value, word_digest, Py_None) < 0 || PyObject_SetAttr(value, word_file_name, Py_None) < 0 ||
                          PyObject_SetAttr(value, word_digest_kind, digest_kind == Py_None ? word_md5 : digest_kind) < 0))
        Py_CLEAR(value);
    return value;
}

/* Does it show all of its storage, whose statistics are then those of every other such view? -1 after an error; 2 where
   they are known already. */
static int shows_all(Look *look, PyObject *size_bytes, PyObject *stats_of_all) {
    PyObject *dense_bytes, *key;
    int answer = is(look->known, word_is_trusted);
    if (answer <= 0) return answer;
    if ((dense_bytes = PyObject_GetAttr(look->layout, word_dense_bytes)) == NULL) return -1;
    answer = PyObject_RichCompareBool(dense_bytes, size_bytes, Py_EQ);
    Py_DECREF(dense_bytes);
    if (answer <= 0 || PyDict_Size(stats_of_all) == 0) return answer;
    if ((key = PyObject_GetAttr(look->layout, word_any_order)) == NULL) return -1;
    answer = PyDict_Contains(stats_of_all, key);
    Py_DECREF(key);
    return answer < 0 ? -1 : 1 + answer;
}

static int keep_for_all(PyObject *stats_of_all, PyObject *layout, PyObject *stats) {
    PyObject *any_order = PyObject_GetAttr(layout, word_any_order), *in_order = PyObject_GetAttr(layout, word_in_order);
    int answer = any_order == NULL || in_order == NULL || PyDict_SetItem(stats_of_all, any_order, stats) < 0 ||
                         PyDict_SetItem(stats_of_all, in_order, stats) < 0
                     ? -1
                     : 0;
    Py_XDECREF(any_order);
    Py_XDECREF(in_order);
    return answer;
}

/* A value with its statistics, which is remembered; NULL without an error where there is more to it. */
static PyObject *sum_up(PyObject *reader, PyObject *tensor, Look *look, PyObject *produced_by) {
    PyObject *way, *size_bytes = NULL, *stats_of_all = NULL, *value = NULL, *stats = NULL;
    int answer = is(look->layout, word_is_in_line), is_done = 0;
    if (answer <= 0) return NULL;
    if ((way = PyObject_GetAttr(reader, word_sums_up)) == NULL) return NULL; /* False; or the kind of digest, or None */
    if (way == Py_False || (size_bytes = ask(look->storage, word_nbytes)) == NULL || (answer = PyObject_IsTrue(size_bytes)) <= 0)
        goto end;
    if (way == Py_None) {
        if ((stats_of_all = PyObject_GetAttr(look->known, word_stats)) == NULL) goto end;
        if ((answer = shows_all(look, size_bytes, stats_of_all)) < 0 || answer == 2) goto end;
    } else {
        answer = 0;
    }
    if ((value = start_value(way)) == NULL || (stats = reduce_line(reader, tensor, look->layout, way == Py_None ? Py_None : value)) == NULL)
        goto end;
    if (stats == Py_None || PyObject_SetAttr(value, word_stats, stats) < 0) goto end;
    if (answer == 1 && keep_for_all(stats_of_all, look->layout, stats) < 0) goto end;
    is_done = remember(value, look, produced_by) == 0;
end:
    Py_XDECREF(way);
    Py_XDECREF(size_bytes);
    Py_XDECREF(stats_of_all);
    Py_XDECREF(stats);
    if (!is_done) Py_CLEAR(value);
    return value;
}
