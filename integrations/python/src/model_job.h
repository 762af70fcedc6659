#pragma once
// `_ems.ModelJob`: a call of ems_model that runs on a thread of its own, so that the thread that
// waits for it stays Python's: it can be interrupted, and shows progress by itself.
//
// Invariant: that thread touches no Python object. Dropping the job stops it and waits until
// it no longer touches memory. Bound: what is on its way when it is stopped, at most the call's
// deadline.
#include <pybind11/pybind11.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/guarded.h"
#include "common/submitted_call.h"
#include "common/thread_pool.h"
#include "ems_model/load_options.h"
#include "ems_model/tensor_stream.h"
#include "integrations/python/src/buffers.h"

namespace ems::python {

// Memory that Python may look into and write; it lives as long as one of them uses it.
struct PyModelMemory {
  model::TensorMemory memory;
  uint64_t bytes = 0;
};

struct LoadedRecord {
  std::string file{};
  std::string name{}, dtype{};    // of a tensor; dtype as safetensors or ggml spell it
  std::vector<uint64_t> shape{};  // of what was loaded
  PyModelMemory memory{};
};

// The state that the job and its thread share. Threading: thread-safe.
class JobBoard final {
 public:
  const std::shared_ptr<StopFlag> stop = std::make_shared<StopFlag>();

  void Progress(uint64_t done, uint64_t total);
  void Give(LoadedRecord record);
  // There will be no more records.
  void End();

  // Waits for a record; false: none came, or the job is over and none is left.
  bool Take(Duration timeout, LoadedRecord* record);
  // Over, and nothing left to take.
  bool Drained();
  model::LoadProgress progress();

 private:
  struct State {
    model::LoadProgress progress;
    std::deque<LoadedRecord> records;
    bool over = false;
  };
  Guarded<State> state_;
  std::condition_variable changed_;
};

// Threading: thread-safe; made, abandoned and destroyed with the GIL.
class PyModelJob final {
 public:
  using Work = std::function<Result<model::LoadStats>(JobBoard* board)>;
  // `buffers` (may be null): what `work` writes to.
  PyModelJob(Work work, std::unique_ptr<BufferSet> buffers);
  ~PyModelJob();
  PyModelJob(const PyModelJob&) = delete;
  PyModelJob& operator=(const PyModelJob&) = delete;

  using Call = SubmittedCall<Result<model::LoadStats>>;
  // Both raise FailedPrecondition in a child of fork().
  JobBoard& board() const { return *Use().board; }
  const Call& call() const { return Use().call; }
  // Ends it and waits until it has ended. The GIL is held, and free meanwhile.
  void Stop();
  // In a child of fork(): its thread is not there, so that its end would be waited for in vain.
  void Abandon() { (void)running_.release(); }

 private:
  struct Running {
    explicit Running(Work work);
    const std::shared_ptr<JobBoard> board = std::make_shared<JobBoard>();
    CallGate gate;
    Thread thread;
    Call call;
  };
  Running& Use() const;

  const std::unique_ptr<BufferSet> buffers_;
  std::unique_ptr<Running> running_;
};

void BindModelJob(pybind11::module_& module);

}  // namespace ems::python
