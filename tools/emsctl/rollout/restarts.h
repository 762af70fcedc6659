#pragma once
// Restarts servers one after another, by a command of the operator, so that the cluster keeps what
// it has cached. How each keeps it is the server's deployment: one that outlives its process
// (restart in place, an SSD tier) is restarted as it is; another one is drained first and gets its
// slots back.
//
// Invariant: one server at a time is away. The next one is not touched before all of this holds:
// the cluster is well, each server has the newest view and has fetched what others kept for it, and
// the last one is back as another process with slots, and with what it had. The first thing that
// does not come to hold ends it all.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "common/clock.h"
#include "common/status.h"
#include "tools/emsctl/rollout/await_servers.h"
#include "tools/emsctl/rollout/command_words.h"

namespace ems::v1 {
class ListNodesReply;
}

namespace ems::emsctl {

enum class RestartMethod : uint8_t { kHold, kDrain };
// "restart in place", "drain, restart, cancel"
std::string_view MethodText(RestartMethod method);

// One server and what is to be done with it.
struct RestartStep {
  std::string name, host;
  RestartMethod method = RestartMethod::kHold;
  std::vector<std::string> words;
};

struct RestartOptions {
  std::vector<std::string> servers;  // empty: all that live and are not drained
  std::optional<RestartMethod> method;
  Patience patience{.call = std::chrono::seconds(5),
                    .whole = std::chrono::minutes(15)};  // of each wait
  bool cold_is_fine = false;
};

// The steps for these servers, in the order of their names, or as they were asked for.
// Errors: kNotFound  a server that is not there    kFailedPrecondition  one that does not live, is
// drained already, or could not give its slots to another    kInvalidArgument  CommandWords::For
Result<std::vector<RestartStep>> PlanRestarts(const v1::ListNodesReply& nodes,
                                              const CommandWords& command,
                                              const RestartOptions& options);

// What one server's restart was.
struct RestartResult {
  std::string name;
  RestartMethod method = RestartMethod::kHold;
  double seconds = 0;
  std::optional<uint64_t> objects_before, objects_after;  // in its memory; none: it did not say
};

// Threading: one thread.
class Rollout final {
 public:
  struct Parts {
    ControllerClient* controller;
    std::function<Status(const std::vector<std::string>& words, Duration patience)> run;
    std::function<std::optional<uint64_t>(const std::string& name)> objects;  // of a server
    std::function<void(const std::string& text)> say;                         // what is being done
  };
  Rollout(Parts parts, const RestartOptions& options)
      : parts_(std::move(parts)), options_(options) {}

  // Blocks. Errors: what did not come to hold, with what is to be done about it
  Result<RestartResult> Restart(const RestartStep& step);

 private:
  Status Prepare(const RestartStep& step);
  Status AwaitBack(const RestartStep& step, uint64_t boot_id);
  Status CheckWarm(const RestartStep& step, RestartResult* result) const;

  const Parts parts_;
  const RestartOptions& options_;
};

}  // namespace ems::emsctl
