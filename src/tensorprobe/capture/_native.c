/* One pass over the memory of a tensor: max, min, sum, sum of squares, counts of NaN and Inf, and the sketch; and the
   positional hash. What each number means: capture/torch/statistics.py, store/sketch.py, capture/torch/digest.py, which
   compute the same without this file.

   Rows of the sketch are read one after another. In a larger tensor, a row whose numbers are all finite, and neither too
   large nor too small for the squares of float32, is added up in lanes of float32; any other one element by element, in
   float64. Rows are taken in chunks of a fixed size and the chunks are added up in their order, so that the number of
   threads changes no bit. Loops count in size_t: Python compiles with -fwrapv, and of a sum of two int that may wrap gcc
   does not know that it goes from one place to the next, and uses no vectors. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROW = 16 * 127, LANES = 16, SUMS = 4, SHORT = 512, FEW = 4096 };
enum { FOLDED_ROWS = 16, CHUNK_ROWS = 256, MAX_THREADS = 64 };
enum { UNNOTICED = 1 << 14 }; /* fewer elements are read before another thread could use the time */
enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, KINDS };
static const int SIZES[KINDS] = {4, 8, 2, 2};
static const float LEAST = 1e-30f; /* squares of a row that add up to less may have lost digits */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

typedef struct {
    double largest, smallest, total, squares;
    int64_t nans, infs;
    double columns[ROW];
} Sums;

typedef struct {
    float largest, smallest;
    double total, squares;
} Short; /* of a piece of a row */

static uint32_t mix(uint32_t number) {
    number ^= number >> 16;
    number *= 0x7FEB352Du;
    number ^= number >> 15;
    number *= 0x846CA68Bu;
    return number ^ (number >> 16);
}

static double row_sign(int64_t row) { return mix((uint32_t)row) & 1 ? -1.0 : 1.0; }

static double column_sign(uint32_t column, uint32_t index) {
    uint32_t common = column & index & 3;
    return ((common ^ (common >> 1) ^ (mix(column >> 2) >> index)) & 1) ? -1.0 : 1.0;
}

/* ---- elements of 16 bits as float32 */

FOR_EACH_PROCESSOR
static void widen_bfloat16(const uint16_t *from, float *to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, 4);
    }
}

FOR_EACH_PROCESSOR
static void widen_float16(const uint16_t *from, float *to, size_t count) {
    const uint32_t exponents = 0x7C00u << 13, least_bits = 113u << 23;
    float least;
    memcpy(&least, &least_bits, 4);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = ((uint32_t)from[i] & 0x7FFFu) << 13, exponent = bits & exponents;
        uint32_t normal = bits + (112u << 23), special = bits + (224u << 23), tiny = bits + least_bits, chosen;
        float number;
        memcpy(&number, &tiny, 4);
        number -= least;
        memcpy(&tiny, &number, 4);
        chosen = exponent == exponents ? special : exponent == 0 ? tiny : normal;
        chosen |= ((uint32_t)from[i] & 0x8000u) << 16;
        memcpy(&to[i], &chosen, 4);
    }
}

/* ---- a row in lanes */

#if defined(__aarch64__) /* one instruction each */
#define LARGER(x, y) __builtin_fmaxf(x, y)
#define SMALLER(x, y) __builtin_fminf(x, y)
#else
#define LARGER(x, y) ((x) > (y) ? (x) : (y))
#define SMALLER(x, y) ((x) < (y) ? (x) : (y))
#endif

/* `count` is a multiple of LANES, at most SHORT. A NaN shows in the squares. */
FOR_EACH_PROCESSOR
static Short look_at(const float *row, size_t count) {
    float largest[LANES], smallest[LANES], total[LANES] = {0}, squares[LANES] = {0};
    for (size_t j = 0; j < LANES; j++) largest[j] = smallest[j] = row[j];
    for (size_t i = 0; i < count; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            float x = row[i + j];
            largest[j] = LARGER(x, largest[j]);
            smallest[j] = SMALLER(x, smallest[j]);
            total[j] += x;
            squares[j] += x * x;
        }
    Short all = {largest[0], smallest[0], 0, 0};
    for (size_t j = 0; j < LANES; j++) {
        all.largest = LARGER(largest[j], all.largest);
        all.smallest = SMALLER(smallest[j], all.smallest);
        all.total += total[j];
        all.squares += squares[j];
    }
    return all;
}

FOR_EACH_PROCESSOR
static void fold(const float *row, float *folded, size_t count, float sign) {
    for (size_t i = 0; i < count; i++) folded[i] += sign * row[i];
}

FOR_EACH_PROCESSOR
static int add_row64(const double *row, size_t count, Sums *sums, double sign) {
    double largest[LANES], smallest[LANES], total[LANES] = {0}, squares[LANES] = {0}, all = 0;
    if (!count) return 1;
    for (size_t j = 0; j < LANES; j++) largest[j] = smallest[j] = row[j];
    for (size_t i = 0; i < count; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            double x = row[i + j];
            largest[j] = x > largest[j] ? x : largest[j];
            smallest[j] = x < smallest[j] ? x : smallest[j];
            total[j] += x;
            squares[j] += x * x;
        }
    for (size_t j = 0; j < LANES; j++) all += squares[j];
    if (!isfinite(all)) return 0;
    for (size_t i = 0; i < count; i++) sums->columns[i] += sign * row[i];
    for (size_t j = 0; j < LANES; j++) {
        sums->largest = largest[j] > sums->largest ? largest[j] : sums->largest;
        sums->smallest = smallest[j] < sums->smallest ? smallest[j] : sums->smallest;
        sums->total += total[j];
    }
    sums->squares += all;
    return 1;
}

/* ---- any row: NaN is counted and left out, infinities are counted and left out of the sketch */

static void add_slowly(double x, int column, Sums *sums, double sign) {
    if (isnan(x)) {
        sums->nans++;
        return;
    }
    sums->largest = x > sums->largest ? x : sums->largest;
    sums->smallest = x < sums->smallest ? x : sums->smallest;
    sums->total += x;
    sums->squares += x * x;
    if (isinf(x))
        sums->infs++;
    else
        sums->columns[column] += sign * x;
}

static const float *row_in_float32(const char *memory, int kind, float *room, int count) {
    if (kind == BFLOAT16)
        widen_bfloat16((const uint16_t *)memory, room, count);
    else if (kind == FLOAT16)
        widen_float16((const uint16_t *)memory, room, count);
    else
        return (const float *)memory;
    return room;
}

/* The elements of a row from `from` to `to`. `room` has them, if they are not float32 or float64. */
static void add_any(const char *memory, int kind, int from, int to, Sums *sums, double sign, const float *room) {
    const float *narrow = kind == FLOAT32 ? (const float *)memory : room;
    for (int i = from; i < to; i++)
        add_slowly(kind == FLOAT64 ? ((const double *)memory)[i] : narrow[i], i, sums, sign);
}

/* False if the squares are too large or too small for float32, or not everything is finite: then nothing was added. */
static int add_row32(const float *row, int count, float *folded, Sums *sums, double sign) {
    Short pieces[ROW / SHORT + 1];
    int number = 0;
    for (int start = 0; start < count; start += SHORT, number++) {
        Short *all = &pieces[number];
        *all = look_at(row + start, count - start < SHORT ? count - start : SHORT);
        if (!isfinite(all->squares) || (all->squares < LEAST && (all->largest != 0 || all->smallest != 0))) return 0;
    }
    fold(row, folded, count, (float)sign);
    while (number-- > 0) {
        Short *all = &pieces[number];
        sums->largest = all->largest > sums->largest ? all->largest : sums->largest;
        sums->smallest = all->smallest < sums->smallest ? all->smallest : sums->smallest;
        sums->total += all->total;
        sums->squares += all->squares;
    }
    return 1;
}

static void unfold(float *folded, Sums *sums, size_t width) {
    for (size_t i = 0; i < width; i++) sums->columns[i] += folded[i];
    memset(folded, 0, sizeof(float) * width);
}

static void start_sums(Sums *sums, int width) {
    sums->largest = -INFINITY;
    sums->smallest = INFINITY;
    sums->total = sums->squares = 0;
    sums->nans = sums->infs = 0;
    memset(sums->columns, 0, sizeof(double) * (size_t)width);
}

static int width_of(int64_t count) { return count < ROW ? (int)count : ROW; }

/* Few elements are added up in float64, as the twin does: in whatever order they lie, their sums are then the same. */
static void add_few(const char *memory, int count, int kind, Sums *sums) {
    float room[ROW];
    double wide[ROW];
    start_sums(sums, width_of(count));
    for (int start = 0; start < count; start += ROW) {
        const char *place = memory + (size_t)start * SIZES[kind];
        int size = width_of(count - start), whole = size - size % LANES;
        double sign = row_sign(start / ROW);
        const float *row = row_in_float32(place, kind, room, size);
        for (size_t i = 0; i < (size_t)size; i++) wide[i] = row[i];
        int is_added = add_row64(wide, whole, sums, sign);
        add_any((const char *)wide, FLOAT64, is_added ? whole : 0, size, sums, sign, NULL);
    }
}

/* The elements from the row `first` on. */
static void add_chunk(const char *memory, int64_t count, int kind, int64_t first, Sums *sums) {
    float folded[ROW], room[ROW];
    int waiting = 0, width = width_of(count);
    start_sums(sums, width);
    memset(folded, 0, sizeof(float) * (size_t)width);
    for (int64_t start = 0; start < count; start += ROW, first++) {
        const char *place = memory + start * SIZES[kind];
        int size = width_of(count - start), whole = size - size % LANES;
        double sign = row_sign(first);
        int is_added = kind == FLOAT64 ? add_row64((const double *)place, whole, sums, sign)
                                       : add_row32(row_in_float32(place, kind, room, size), whole, folded, sums, sign);
        add_any(place, kind, is_added ? whole : 0, size, sums, sign, room);
        if (++waiting == FOLDED_ROWS) {
            unfold(folded, sums, width);
            waiting = 0;
        }
    }
    if (waiting) unfold(folded, sums, width);
}

static void merge(Sums *all, const Sums *part, int width) {
    all->largest = part->largest > all->largest ? part->largest : all->largest;
    all->smallest = part->smallest < all->smallest ? part->smallest : all->smallest;
    all->total += part->total;
    all->squares += part->squares;
    all->nans += part->nans;
    all->infs += part->infs;
    for (size_t i = 0; i < (size_t)width; i++) all->columns[i] += part->columns[i];
}

/* ---- chunks, by several threads */

typedef struct {
    const char *memory;
    int64_t count, chunks, first; /* the number of the first chunk in the whole tensor */
    int kind;
    Sums *parts;
    int64_t next;
} Work;

static void *work_on(void *argument) {
    Work *work = argument;
    int64_t chunk, size = (int64_t)CHUNK_ROWS * ROW;
    while ((chunk = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->chunks) {
        int64_t start = chunk * size, left = work->count - start;
        add_chunk(work->memory + start * SIZES[work->kind], left < size ? left : size, work->kind,
                  (work->first + chunk) * CHUNK_ROWS, &work->parts[chunk]);
    }
    return NULL;
}

static int reduce_all(const char *memory, int64_t count, int kind, int threads, Sums *sums) {
    int64_t size = (int64_t)CHUNK_ROWS * ROW, chunks = (count + size - 1) / size;
    if (count <= FEW && kind != FLOAT64) {
        add_few(memory, (int)count, kind, sums);
        return 1;
    }
    if (chunks <= 1) {
        add_chunk(memory, count, kind, 0, sums);
        return 1;
    }
    enum { AT_ONCE = 64 }; /* parts that wait to be merged: bounds the memory */
    Sums *parts = malloc(sizeof(Sums) * (size_t)(chunks < AT_ONCE ? chunks : AT_ONCE));
    if (parts == NULL) return 0;
    start_sums(sums, ROW);
    for (int64_t begun = 0; begun < chunks; begun += AT_ONCE) {
        Work work = {memory + begun * size * SIZES[kind], count - begun * size, 0, begun, kind, parts, 0};
        pthread_t started[MAX_THREADS];
        int running = 0;
        work.chunks = chunks - begun < AT_ONCE ? chunks - begun : AT_ONCE;
        if (work.count > AT_ONCE * size) work.count = AT_ONCE * size;
        while (running < threads - 1 && running < MAX_THREADS && running < work.chunks - 1 &&
               pthread_create(&started[running], NULL, work_on, &work) == 0)
            running++;
        work_on(&work);
        while (running > 0) pthread_join(started[--running], NULL);
        for (int64_t chunk = 0; chunk < work.chunks; chunk++) {
            int64_t left = work.count - chunk * size;
            merge(sums, &parts[chunk], width_of(left));
        }
    }
    free(parts);
    return 1;
}

static void project(const double *columns, int count, double *sketch) {
    static double signs[ROW][SUMS];
    static int is_known = 0;
    if (!__atomic_load_n(&is_known, __ATOMIC_ACQUIRE)) { /* several threads may do so, and write the same */
        for (int i = 0; i < ROW; i++)
            for (int index = 0; index < SUMS; index++) signs[i][index] = column_sign((uint32_t)i, (uint32_t)index);
        __atomic_store_n(&is_known, 1, __ATOMIC_RELEASE);
    }
    double sums[2][SUMS] = {{0}};
    for (int i = 0; i < count; i++)
        for (int index = 0; index < SUMS; index++) sums[i & 1][index] += signs[i][index] * columns[i];
    for (int index = 0; index < SUMS; index++) sketch[index] = sums[0][index] + sums[1][index];
}

static PyObject *native_reduce(PyObject *self, PyObject *arguments) {
    unsigned long long address;
    long long count;
    int kind, threads, is_done;
    double sketch[SUMS];
    Sums sums;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "KLii", &address, &count, &kind, &threads)) return NULL;
    if (address == 0 || count <= 0 || kind < 0 || kind >= KINDS) {
        PyErr_SetString(PyExc_ValueError, "no memory, no elements, or an unknown kind");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    is_done = reduce_all((const char *)(uintptr_t)address, count, kind, threads, &sums);
    if (is_done) project(sums.columns, width_of(count), sketch);
    Py_END_ALLOW_THREADS
    if (!is_done) return PyErr_NoMemory();
    return Py_BuildValue("ddddLLdddd", sums.largest, sums.smallest, sums.total, sums.squares, (long long)sums.nans,
                         (long long)sums.infs, sketch[0], sketch[1], sketch[2], sketch[3]);
}

/* ---- native.summarize_memory: the same as a Stats, where nothing is to be said of the numbers but these */

static PyObject *stats_type, *stats_words[9]; /* as in STATS_WORDS */
static newfunc new_stats;
static const char *STATS_WORDS[9] = {"max", "min", "mean", "norm", "nan_count", "inf_count", "reason", "text", "sketch"};
static const double TINY = 1e-280; /* squares of float64 below this have lost digits */

static PyObject *native_prepare(PyObject *self, PyObject *type) {
    (void)self;
    for (int i = 0; i < 9; i++)
        if ((stats_words[i] = PyUnicode_InternFromString(STATS_WORDS[i])) == NULL) return NULL;
    Py_INCREF(type);
    stats_type = type;
    new_stats = (newfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_new);
    Py_RETURN_NONE;
}

static int set(PyObject *object, PyObject *word, PyObject *item) { /* takes the item */
    int answer = item == NULL ? -1 : PyObject_SetAttr(object, word, item);
    Py_XDECREF(item);
    return answer;
}

static PyObject *make_stats(const Sums *sums, const double *sketch, long long count) {
    PyObject *nothing = PyTuple_New(0), *stats = nothing == NULL ? NULL : new_stats((PyTypeObject *)stats_type, nothing, NULL);
    double numbers[4] = {sums->largest, sums->smallest, sums->total / (double)count, sqrt(sums->squares)};
    int answer = stats == NULL ? -1 : 0;
    Py_XDECREF(nothing);
    for (int i = 0; answer == 0 && i < 4; i++) answer = set(stats, stats_words[i], PyFloat_FromDouble(numbers[i]));
    for (int i = 4; answer == 0 && i < 6; i++) answer = set(stats, stats_words[i], PyLong_FromLong(0));
    for (int i = 6; answer == 0 && i < 8; i++) answer = PyObject_SetAttr(stats, stats_words[i], Py_None);
    if (answer == 0) answer = set(stats, stats_words[8], Py_BuildValue("[dddd]", sketch[0], sketch[1], sketch[2], sketch[3]));
    if (answer < 0) Py_CLEAR(stats);
    return stats;
}

static PyObject *native_summarize(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    double sketch[SUMS];
    Sums sums;
    (void)self;
    if (given != 4 || stats_type == NULL) return PyErr_Format(PyExc_TypeError, "summarize takes an address, a count, a kind and threads, after prepare");
    unsigned long long address = PyLong_AsUnsignedLongLong(arguments[0]);
    long long count = PyLong_AsLongLong(arguments[1]);
    long kind = PyLong_AsLong(arguments[2]), threads = PyLong_AsLong(arguments[3]);
    int is_done;
    if (PyErr_Occurred()) return NULL;
    if (address == 0) Py_RETURN_NONE; /* zeros that nobody has stored */
    if (count <= 0 || kind < 0 || kind >= KINDS)
        return PyErr_Format(PyExc_ValueError, "no memory, no elements, or an unknown kind");
    if (count < UNNOTICED) {
        is_done = reduce_all((const char *)(uintptr_t)address, count, (int)kind, 1, &sums);
        if (is_done) project(sums.columns, width_of(count), sketch);
    } else {
        Py_BEGIN_ALLOW_THREADS
        is_done = reduce_all((const char *)(uintptr_t)address, count, (int)kind, (int)threads, &sums);
        if (is_done) project(sums.columns, width_of(count), sketch);
        Py_END_ALLOW_THREADS
    }
    if (!is_done) return PyErr_NoMemory();
    int is_usual = (sums.squares > TINY && sums.squares < (double)INFINITY) || (sums.largest == 0 && sums.smallest == 0);
    if (sums.nans || sums.infs || !is_usual) Py_RETURN_NONE;
    return make_stats(&sums, sketch, count);
}

/* ---- the positional hash */

static uint64_t fold_bits(uint64_t product) { return product ^ (product >> 32); }

#define DEFINE_HASH(width)                                                                                             \
    FOR_EACH_PROCESSOR                                                                                                 \
    static uint64_t hash_##width(const uint##width##_t *words, int64_t count, uint64_t start) {                        \
        const uint64_t a = 0x9E3779B97F4A7C15u, b = 0xD6E8FEB86659FD93u;                                               \
        uint64_t total = 0, place = (2 * start + 1) * b;                                                               \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            total += fold_bits((uint64_t)words[i] * a) * (fold_bits(place) | 1);                                       \
            place += 2 * b;                                                                                            \
        }                                                                                                              \
        return total;                                                                                                  \
    }
DEFINE_HASH(8)
DEFINE_HASH(16)
DEFINE_HASH(32)
DEFINE_HASH(64)

static PyObject *native_hash(PyObject *self, PyObject *arguments) {
    unsigned long long address, start, total = 0;
    long long count;
    int width;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "KLiK", &address, &count, &width, &start)) return NULL;
    if (count < 0 || (address == 0 && count) || (width != 8 && width != 16 && width != 32 && width != 64)) {
        PyErr_SetString(PyExc_ValueError, "no memory, or words of an unknown width");
        return NULL;
    }
    const void *words = (const void *)(uintptr_t)address;
    Py_BEGIN_ALLOW_THREADS
    total = width == 8    ? hash_8(words, count, start)
            : width == 16 ? hash_16(words, count, start)
            : width == 32 ? hash_32(words, count, start)
                          : hash_64(words, count, start);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(total);
}

static PyMethodDef METHODS[] = {
    {"reduce", native_reduce, METH_VARARGS,
     "reduce(address, count, kind, threads): max, min, sum, sum of squares, NaN count, Inf count, sketch"},
    {"prepare", native_prepare, METH_O, "prepare(Stats): what `summarize` returns"},
    {"summarize", (PyCFunction)(void (*)(void))native_summarize, METH_FASTCALL,
     "summarize(address, count, kind, threads): Stats; None where more is to be said"},
    {"hash_words", native_hash, METH_VARARGS, "hash_words(address, count, width, start): the hash of words, the first at `start`"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_native", "Passes over memory, compiled.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", 1) < 0) Py_CLEAR(module);
    return module;
}
