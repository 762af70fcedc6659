#include "mp_server/models/pull_worker.h"

#include <string>
#include <utility>
#include <vector>

#include "common/logging.h"

namespace ems::server {
namespace {

constexpr Duration kIdle = std::chrono::seconds(60);
constexpr Duration kBufferIdle = std::chrono::seconds(1);
constexpr Duration kViewSoon = std::chrono::milliseconds(20);
constexpr Duration kCheckRetry = std::chrono::milliseconds(200);

}  // namespace

void PullWorker::Run() {
  std::vector<std::byte> buffer;
  while (true) {
    PullSchedule::Work next;
    {
      auto locked = table_.state.Lock();
      locked.WaitFor(table_.work, buffer.empty() ? kIdle : kBufferIdle, [&](PullTable::State& s) {
        if (!s.stopping) next = s.schedule.Next(s.pulls);
        return s.stopping || next;
      });
      if (locked->stopping) return;
    }
    if (next.check) {
      Check(*std::move(next.check), &buffer);
    } else if (next.pull) {
      const model::ManifestSource& source = next.pull->manifest->source;
      const auto open = [&](uint32_t stream) { return table_.sources.Open(source, stream); };
      Take(*next.pull, blocks_->Pull(*next.pull, open, &buffer));
    } else {
      buffer = {};  // nothing to do: its memory is of use elsewhere
    }
    if (buffer.size() > kBufferBytesKept) buffer = {};
  }
}

void PullWorker::Take(const ModelPull::Task& task, Result<BlockPuller::Pulled> pulled) {
  const bool cancelled = pulled.status().code() == StatusCode::kCancelled;
  if (pulled.ok()) {
    const ModelPull::Outcome& outcome = pulled->outcome;
    table_.counters.source_bytes.Add(static_cast<double>(outcome.source_bytes));
    table_.counters.promoted_bytes.Add(static_cast<double>(outcome.promoted_bytes));
    if (outcome.shared) table_.counters.shared_bytes.Add(static_cast<double>(outcome.source_bytes));
  } else if (!cancelled) {
    table_.counters.failed_pulls.Add();
    EMS_LOG(kWarn, "mp_server", "block {} of {} {}: {}", task.block, task.manifest->model,
            task.manifest->version, Message(pulled.status()));
    table_.sources.Forget(task.manifest->source);
  }
  ObjectPin unused;
  const bool later = pulled.ok() && !pulled->ours;
  {
    auto locked = table_.state.Lock();
    locked->schedule.PullEnded(task.origin);
  }
  table_.With(task.model_id, [&](ModelPull& pull) {
    if (cancelled || later)  // its source was not needed any more, and now it is
      pull.GiveBack(task);
    else if (!pulled.ok())
      pull.Fail(task, pulled.status());
    else
      unused = pull.Done(task, std::move(pulled->outcome));
  });
  table_.Wake();                              // it may be its turn to be checked
  if (later) table_.stop.WaitFor(kViewSoon);  // a view is on its way: not in a tight loop
}

void PullWorker::Check(ModelPull::CheckTask task, std::vector<std::byte>* buffer) {
  ModelPull::CheckOutcome outcome;
  const Status done = checks_.Run(&task, buffer, &outcome);
  const bool never = done.code() == StatusCode::kUnimplemented;
  if (!done.ok() && done.code() != StatusCode::kCancelled) {
    table_.counters.failed_checks.Add();
    if (std::exchange(failed_check_, std::string(Message(done))) != Message(done)) {
      EMS_LOG(kWarn, "mp_server", "adding up file {} of {} {}: {}", task.file, task.manifest->model,
              task.manifest->version, Message(done));
    }
  } else if (done.ok()) {
    failed_check_.clear();
  }
  if (!done.ok() && !never && table_.stop.WaitFor(kCheckRetry)) return;
  {
    auto locked = table_.state.Lock();
    locked->schedule.CheckEnded();
  }
  table_.With(task.model_id, [&](ModelPull& pull) {
    if (never)
      pull.FailCheck(task, done);
    else
      pull.CheckEnded(task, outcome);
  });
  table_.Wake();
}

}  // namespace ems::server
