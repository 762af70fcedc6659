#pragma once
// Releases the GIL for a scope, so that other Python threads run while C++ works or waits.
//
// pybind11::gil_scoped_release does not suffice: when the interpreter ends, a daemon thread that
// asks for the GIL is ended by pthread_exit, whose unwinding would meet a noexcept destructor and
// abort the process. Here such a thread sleeps until the process has ended: unwinding it further
// would release Python objects without the GIL. Bound: it holds the memory of its call and no lock.
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

// What `work` returns, done while the GIL is free.
template <typename Work>
auto WithoutGil(const Work& work) {
  const GilRelease free;
  return work();
}

}  // namespace ems::python
