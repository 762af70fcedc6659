#pragma once
// One engine instance that loads models, as a process of its own, by one of the paper's three
// strategies (CM §4.4.3, Table 2).
//
// Device memory is memory of the process, taken and touched before it is timed: what an
// accelerator would have to do beyond that is the same for all strategies.
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::bench {

enum class ModelStrategy {
  kNoCache,    // each load reads the source
  kLocalDram,  // the last model stays in DRAM of the instance's own
  kEms,
};
std::string_view StrategyName(ModelStrategy strategy);

struct InstanceLoad {
  double seconds = 0;
  double cpu_seconds = 0;  // of the instance
  uint64_t bytes = 0;
  uint64_t hash = 0;  // as MadeModel's
  bool hit = false;   // nothing came from the source
};

// The parent's end. Threading: one thread.
class ModelInstance final {
  struct Passkey {};  // only Start constructs

 public:
  // `program`: the path of ems-bench. Errors: kInternal  no process
  static Result<std::unique_ptr<ModelInstance>> Start(const std::string& program,
                                                      ModelStrategy strategy,
                                                      const std::string& controller,
                                                      const std::string& name_space);
  ModelInstance(Passkey, pid_t pid, fabric::Fd socket) : pid_(pid), socket_(std::move(socket)) {}
  ~ModelInstance();
  ModelInstance(const ModelInstance&) = delete;
  ModelInstance& operator=(const ModelInstance&) = delete;

  // Begins to load version `version` of "bench/model", or, without EMS, what lies at `url`; one
  // load at a time. `bytes`: how large it is. End waits for it.
  Status Begin(const std::string& version, const std::string& url, uint64_t bytes);
  Result<InstanceLoad> End();
  // Copies `bytes` from memory to memory in the instance with memcpy and as many threads as a load
  // has, as a load with nothing in its way would: seconds of the median of five.
  Result<double> Copy(uint64_t bytes);
  pid_t pid() const { return pid_; }

 private:
  Status Tell(const std::string& text);
  Result<std::string> Answer();

  const pid_t pid_;
  const fabric::Fd socket_;
};

// The child: takes commands from kInheritedFd until that closes. Returns the exit code.
int RunModelInstance(const std::string& strategy, const std::string& controller,
                     const std::string& name_space);

}  // namespace ems::bench
