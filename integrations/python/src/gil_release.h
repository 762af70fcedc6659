#pragma once
// Lets other Python threads run while C++ works or waits.
//
// Why not pybind11's: when the interpreter ends, a daemon thread that asks for the GIL is ended by
// pthread_exit, whose unwinding would meet a noexcept destructor and abort the process. Here such a
// thread sleeps until the process is gone: unwinding it further would let go of Python objects
// without the GIL. Bound: it holds the memory of its call and no lock.
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace ems::python {

// Made with the GIL held, which is free until the end of the scope. Threading: of one thread.
class GilRelease final {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  // The thread that ends the interpreter gets the GIL as ever: whether it is being ended is asked
  // by PyEval_RestoreThread alone, which knows for whom.
  ~GilRelease() noexcept(false) {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) ::pause();
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace ems::python
