/* Launches a kernel that triton has compiled, by the driver's own function: triton's launcher asks its hooks, and makes
   and takes apart a tuple, for several times as long. device_kernel.py does the same without this file. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>

enum { MOST = 32 }; /* parameters of a kernel */

typedef int (*LaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);
typedef int (*ParameterInfo)(void *function, size_t index, size_t *offset, size_t *size);

static LaunchKernel launch_kernel;
static ParameterInfo parameter_info;

static int open_driver(void) {
    void *driver = launch_kernel == NULL ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
    if (driver != NULL) {
        parameter_info = (ParameterInfo)(uintptr_t)dlsym(driver, "cuFuncGetParamInfo"); /* from CUDA 12.4 on */
        if (parameter_info != NULL) launch_kernel = (LaunchKernel)(uintptr_t)dlsym(driver, "cuLaunchKernel");
    }
    return launch_kernel != NULL;
}

/* How many parameters of 8 bytes a kernel has: triton adds some of its own; -1 where it cannot be known. */
static PyObject *native_count(PyObject *self, PyObject *function) {
    size_t offset, size, index = 0;
    (void)self;
    void *handle = PyLong_AsVoidPtr(function);
    if (handle == NULL && PyErr_Occurred()) return NULL;
    if (!open_driver()) return PyLong_FromLong(-1);
    while (index <= MOST && parameter_info(handle, index, &offset, &size) == 0) {
        if (size != 8) return PyLong_FromLong(-1);
        index++;
    }
    return PyLong_FromSsize_t(index == 0 || index > MOST ? -1 : (Py_ssize_t)index);
}

/* launch(function, blocks, threads, shared bytes, stream, parameters, number, number, …): those that are not given are 0 */
static PyObject *native_launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    int64_t numbers[MOST] = {0};
    void *parameters[MOST];
    long settings[4];
    (void)self;
    if (count < 6 || count - 6 > MOST || launch_kernel == NULL) return PyErr_Format(PyExc_TypeError, "launch takes a kernel that was counted");
    void *function = PyLong_AsVoidPtr(arguments[0]), *stream = PyLong_AsVoidPtr(arguments[4]);
    for (int i = 0; i < 3; i++) settings[i] = PyLong_AsLong(arguments[1 + i]);
    settings[3] = PyLong_AsLong(arguments[5]);
    for (Py_ssize_t i = 6; i < count; i++) numbers[i - 6] = PyLong_AsLongLong(arguments[i]);
    if (PyErr_Occurred()) return NULL;
    if (settings[3] < count - 6 || settings[3] > MOST) return PyErr_Format(PyExc_ValueError, "a kernel of other parameters");
    for (long i = 0; i < settings[3]; i++) parameters[i] = &numbers[i];
    int error = launch_kernel(function, (unsigned)settings[0], 1, 1, (unsigned)settings[1], 1, 1, (unsigned)settings[2], stream,
                              parameters, NULL);
    if (error != 0) return PyErr_Format(PyExc_RuntimeError, "the driver refused a kernel: CUDA error %d", error);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"count_parameters", native_count, METH_O, "count_parameters(function): how many, of 8 bytes each; -1 where it is not known"},
    {"launch", (PyCFunction)(void (*)(void))native_launch, METH_FASTCALL,
     "launch(function, blocks, threads, shared_bytes, stream, parameters, *numbers)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_launch", "Launches, compiled.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__launch(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", 1) < 0) Py_CLEAR(module);
    return module;
}
