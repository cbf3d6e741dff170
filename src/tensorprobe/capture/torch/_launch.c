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
typedef int (*GetContext)(void **context);
typedef int (*SetContext)(void *context);

enum { NO_CONTEXT = 201 };
static LaunchKernel launch_kernel;
static ParameterInfo parameter_info;
static GetContext get_context;
static SetContext set_context;

static int open_driver(void) {
    void *driver = launch_kernel == NULL ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
    if (driver != NULL) {
        parameter_info = (ParameterInfo)(uintptr_t)dlsym(driver, "cuFuncGetParamInfo"); /* from CUDA 12.4 on */
        get_context = (GetContext)(uintptr_t)dlsym(driver, "cuCtxGetCurrent");
        set_context = (SetContext)(uintptr_t)dlsym(driver, "cuCtxSetCurrent");
        if (parameter_info != NULL && get_context != NULL && set_context != NULL) launch_kernel = (LaunchKernel)(uintptr_t)dlsym(driver, "cuLaunchKernel");
    }
    return launch_kernel != NULL;
}

/* How many parameters of 8 bytes a kernel has, for triton adds some of its own, and the context that it is of; None where
   that cannot be known. */
static PyObject *native_examine(PyObject *self, PyObject *function) {
    size_t offset, size, count = 0;
    void *handle = PyLong_AsVoidPtr(function), *context = NULL;
    (void)self;
    if (handle == NULL && PyErr_Occurred()) return NULL;
    if (!open_driver() || get_context(&context) != 0 || context == NULL) Py_RETURN_NONE;
    for (; count <= MOST && parameter_info(handle, count, &offset, &size) == 0; count++)
        if (size != 8) Py_RETURN_NONE;
    if (count > MOST) Py_RETURN_NONE;
    return Py_BuildValue("nK", (Py_ssize_t)count, (unsigned long long)(uintptr_t)context);
}

/* A thread of its own, as that of a backward pass, may not have been given the context yet. */
static PyObject *native_launch(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    int64_t numbers[MOST] = {0};
    void *parameters[MOST];
    unsigned long settings[3];
    (void)self;
    if (given < 7 || given - 7 > MOST || launch_kernel == NULL)
        return PyErr_Format(PyExc_TypeError, "launch takes a kernel that was examined");
    void *function = PyLong_AsVoidPtr(arguments[0]), *stream = PyLong_AsVoidPtr(arguments[4]);
    void *context = PyLong_AsVoidPtr(arguments[6]);
    Py_ssize_t count = PyLong_AsSsize_t(arguments[5]);
    for (int i = 0; i < 3; i++) settings[i] = PyLong_AsUnsignedLong(arguments[1 + i]);
    for (Py_ssize_t i = 7; i < given; i++) numbers[i - 7] = PyLong_AsLongLong(arguments[i]);
    if (PyErr_Occurred()) return NULL;
    if (count < given - 7 || count > MOST) return PyErr_Format(PyExc_ValueError, "a kernel of other parameters");
    for (Py_ssize_t i = 0; i < count; i++) parameters[i] = &numbers[i];
    int error = NO_CONTEXT;
    for (int attempt = 0; attempt < 2 && error == NO_CONTEXT; attempt++) {
        if (attempt == 1 && set_context(context) != 0) break;
        Py_BEGIN_ALLOW_THREADS /* it waits where the device has much to do */
        error = launch_kernel(function, (unsigned)settings[0], 1, 1, (unsigned)settings[1], 1, 1, (unsigned)settings[2],
                              stream, parameters, NULL);
        Py_END_ALLOW_THREADS
    }
    if (error != 0) return PyErr_Format(PyExc_RuntimeError, "the driver refused a kernel: CUDA error %d", error);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"examine", native_examine, METH_O,
     "examine(function): how many parameters it has, of 8 bytes each, and its context; None where that is not known"},
    {"launch", (PyCFunction)(void (*)(void))native_launch, METH_FASTCALL,
     "launch(function, blocks, threads, shared_bytes, stream, count, context, *numbers): parameters beyond them are 0"},
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
