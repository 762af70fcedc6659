#pragma once
// `_ems.ModelJob`: a call of ems_model that runs on a thread of its own, so that the thread that
// waits for it stays Python's: it can be interrupted, and shows progress by itself.
//
// Invariant: that thread touches no Python object. Whoever drops the job stops it and waits until
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
#include "common/thread_pool.h"
#include "ems_model/model_loader.h"
#include "ems_model/tensor_stream.h"
#include "integrations/python/src/buffers.h"

namespace ems::python {

// Memory that Python may look into and write; it lives as long as somebody does.
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

// What the job and its thread share. Threading: thread-safe.
class JobBoard final {
 public:
  const std::shared_ptr<StopFlag> stop = std::make_shared<StopFlag>();

  void Progress(uint64_t done, uint64_t total);
  void Give(LoadedRecord record);
  void Finish(Status status, model::LoadStats stats);

  // Waits until the job is over; false: not within `timeout`.
  bool Wait(Duration timeout);
  // Waits for a record; false: none came, or the job is over and none is left.
  bool Take(Duration timeout, LoadedRecord* record);
  // Over, and nothing left to take.
  bool Drained();
  model::LoadProgress progress();
  Result<model::LoadStats> result();

 private:
  struct State {
    model::LoadProgress progress;
    std::deque<LoadedRecord> records;
    bool over = false;
    Status status;
    model::LoadStats stats;
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

  // Raises FailedPrecondition in a child of fork().
  JobBoard& board() const;
  // Ends it and waits until it has ended. The GIL is held, and free meanwhile.
  void Stop();
  // In a child of fork(): its thread is not there, so that its end would be waited for in vain.
  void Abandon() { (void)running_.release(); }

 private:
  struct Running {
    std::shared_ptr<JobBoard> board;
    Thread thread;
  };
  const std::unique_ptr<BufferSet> buffers_;
  std::unique_ptr<Running> running_;
};

void BindModelJob(pybind11::module_& module);

}  // namespace ems::python
