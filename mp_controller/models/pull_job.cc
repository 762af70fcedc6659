#include "mp_controller/models/pull_job.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;

uint64_t Ms(Duration duration) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<milliseconds>(duration).count()));
}

// Which error tells most: that of a source that has changed, or is damaged, is everybody's; what
// may pass is the least.
int Weight(StatusCode code) {
  switch (code) {
    case StatusCode::kFailedPrecondition:
      return 3;
    case StatusCode::kDataLoss:
      return 2;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return 0;
    default:
      return 1;
  }
}

void Add(const NodeInfo& node, const Status& why, PullJob::Failures* failures) {
  if (failures->named.size() == PullJob::kFailuresMax) {
    ++failures->left_out;
    return;
  }
  const std::string text(Message(why).substr(0, PullJob::kErrorBytesMax));
  const auto after =
      std::ranges::upper_bound(failures->named, node.name, {}, &PullJob::Failure::server);
  failures->named.insert(after, {node.name, Status(why.code(), text)});
}

Status Reported(const v1::ReportPullRequest& report) {
  if (report.error_code() == 0) return OkStatus();
  return {static_cast<StatusCode>(std::min(report.error_code(), 16U)), report.error()};
}

}  // namespace

Status PullJob::Failures::Summary() const {
  if (named.empty()) return OkStatus();
  const auto worst = std::ranges::max_element(
      named, {}, [](const Failure& one) { return Weight(one.why.code()); });
  std::string text;
  for (const Failure& one : named) {
    if (!text.empty()) text += "; ";
    text += fmt::format("server \"{}\": {}", one.server, Message(one.why));
  }
  if (left_out > 0) text += fmt::format("; and {} more servers", left_out);
  return {worst->why.code(), text};
}

bool PullJob::running() const { return state == v1::PULL_RUNNING; }

void PullJob::Begin(uint64_t job, uint32_t job_priority, Duration timeout, TimePoint now) {
  number = job;
  state = v1::PULL_RUNNING;
  priority = job_priority;
  began = now;
  deadline = now + std::clamp(timeout, kTimeoutMin, kTimeoutMost);
}

bool PullJob::Extend(Duration timeout, TimePoint now) {
  const TimePoint asked = std::min(now + timeout, began + kTimeoutMost);
  if (timeout == Duration(0) || asked <= deadline) return false;
  deadline = asked;
  return true;
}

void PullJob::Take(const v1::ReportPullRequest& report, const Status& refused, TimePoint now) {
  Part& part = parts[rules.parts_are_of_one_process ? report.boot_id() : report.node_id()];
  const bool late = report.sequence() != 0 && report.sequence() <= part.sequence;
  if (late && rules.late_reports_count_for_nothing) return;
  part = {.view = ViewVersion(report.term(), report.epoch()).packed(),
          .sequence = report.sequence(),
          .finished = report.finished(),
          .error = refused.ok() ? Reported(report) : refused,
          .heard = now,
          .blocks_done = report.blocks_done(),
          .bytes_done = report.bytes_done(),
          .source_bytes = report.source_bytes(),
          .promoted_bytes = report.promoted_bytes(),
          .shared_bytes = report.shared_bytes(),
          .read_bytes = report.read_bytes(),
          .checked_bytes = report.checked_bytes()};
}

const PullJob::Part* PullJob::PartOf(const NodeInfo& node) const {
  const auto part = parts.find(rules.parts_are_of_one_process ? node.boot_id : node.id.value());
  return part == parts.end() ? nullptr : &part->second;
}

bool PullJob::HasFinished(const Part* part, const DhtView& view) const {
  return part != nullptr && part->error.ok() && part->finished &&
         (part->view == view.version().packed() || !rules.finished_is_under_the_view);
}

PullJob::Failures PullJob::FailedNow(const DhtView* view) const {
  Failures failed;
  if (view == nullptr) return failed;
  for (const NodeInfo& node : view->nodes()) {
    const Part* const part = PartOf(node);
    if (part != nullptr && !part->error.ok()) Add(node, part->error, &failed);
  }
  return failed;
}

// At the deadline: those who have failed, and those who are not ready.
PullJob::Failures PullJob::LateAt(const DhtView* view, TimePoint now) const {
  Failures late;
  if (view == nullptr) return late;
  const auto seconds = [](Duration time) { return static_cast<double>(Ms(time)) / 1000; };
  for (const NodeInfo& node : view->nodes()) {
    const Part* const part = PartOf(node);
    if (HasFinished(part, *view)) continue;
    if (part == nullptr) {
      Add(node, Error(StatusCode::kDeadlineExceeded, "has said nothing of this job"), &late);
    } else if (!part->error.ok()) {
      Add(node, part->error, &late);
    } else {
      Add(node,
          Error(StatusCode::kDeadlineExceeded,
                "not ready after {:.0f} s: {} blocks in DRAM, heard of {:.1f} s ago",
                seconds(now - began), part->blocks_done, seconds(now - part->heard)),
          &late);
    }
  }
  return late;
}

std::optional<PullJob::End> PullJob::Judge(const DhtView* view, bool checked, TimePoint now) const {
  if (!running()) return std::nullopt;
  if (view != nullptr && !view->nodes().empty() && !view->frozen()) {
    const auto finished = [&](const NodeInfo& node) { return HasFinished(PartOf(node), *view); };
    const auto settled = [&](const NodeInfo& node) {
      const Part* const part = PartOf(node);
      return HasFinished(part, *view) || (part != nullptr && !part->error.ok());
    };
    const bool all = std::ranges::all_of(view->nodes(), finished);
    if (all && checked) return End{.state = v1::PULL_DONE, .failures = {}, .why = {}};
    if (!all && std::ranges::all_of(view->nodes(), settled)) {
      Failures failed = FailedNow(view);
      Status said = failed.Summary();
      return End{.state = v1::PULL_FAILED, .failures = std::move(failed), .why = std::move(said)};
    }
  }
  if (now < deadline || !rules.jobs_have_deadlines) return std::nullopt;
  Failures late = LateAt(view, now);
  Status said = late.Summary();
  if (said.ok()) {
    said = Error(StatusCode::kDeadlineExceeded, "{}",
                 view == nullptr || view->nodes().empty() ? "there is no server"
                                                          : "its files are still being compared");
  }
  return End{.state = v1::PULL_FAILED, .failures = std::move(late), .why = std::move(said)};
}

void PullJob::SaveFailures(const Failures& failed, v1::PullJob* out) const {
  for (const Failure& one : failed.named) {
    v1::PullFailure* const saved = out->add_failures();
    saved->set_server(one.server);
    saved->set_error_code(static_cast<uint32_t>(one.why.code()));
    saved->set_error(std::string(Message(one.why)));
  }
  out->set_failures_left_out(failed.left_out);
}

void PullJob::Save(TimePoint now, uint64_t unix_ms, v1::PullJob* out) const {
  out->set_number(number);
  out->set_state(static_cast<v1::PullState>(state));
  out->set_priority(priority);
  if (running()) out->set_deadline_unix_ms(unix_ms + Ms(deadline - now));
  SaveFailures(failures, out);
  if (why.ok()) return;
  out->set_error_code(static_cast<uint32_t>(why.code()));
  out->set_error(std::string(Message(why)));
}

// A wall clock that was set back leaves it the longest that a job may take.
void PullJob::Restore(const v1::PullJob& saved, TimePoint now, uint64_t unix_ms) {
  number = saved.number();
  state = saved.state();
  priority = saved.priority();
  began = ended = now;
  const uint64_t until = saved.deadline_unix_ms();
  const uint64_t left = until > unix_ms ? std::min(until - unix_ms, Ms(kTimeoutMost)) : 0;
  deadline = now + (until == 0 ? kTimeout : milliseconds(left));
  failures = {.named = {}, .left_out = saved.failures_left_out()};
  for (const v1::PullFailure& one : saved.failures()) {
    failures.named.push_back(
        {one.server(), Status(static_cast<StatusCode>(one.error_code()), one.error())});
  }
  if (saved.error_code() != 0)
    why = Status(static_cast<StatusCode>(saved.error_code()), saved.error());
}

void PullJob::Fill(const DhtView* view, TimePoint now, uint64_t blocks_max, uint64_t bytes_max,
                   v1::PullJob* out) const {
  out->set_number(number);
  out->set_state(static_cast<v1::PullState>(state));
  out->set_priority(priority);
  if (!why.ok()) {
    out->set_error_code(static_cast<uint32_t>(why.code()));
    out->set_error(std::string(Message(why)));
  }
  SaveFailures(running() ? FailedNow(view) : failures, out);
  if (running()) out->set_time_left_ms(Ms(deadline - now));
  uint64_t blocks = 0, bytes = 0, source = 0, promoted = 0, shared = 0, read = 0, checked = 0;
  for (const auto& [boot, part] : parts) {
    const uint64_t boot_id = boot;  // clang 14 captures no bindings
    source += part.source_bytes;
    promoted += part.promoted_bytes;
    shared += part.shared_bytes;
    read += part.read_bytes;
    // What a server that is gone had done is to be done again.
    const auto is_there = [&](const NodeInfo& node) { return node.boot_id == boot_id; };
    if (view != nullptr && running() && std::ranges::none_of(view->nodes(), is_there)) continue;
    blocks += part.blocks_done;
    bytes += part.bytes_done;
    checked += part.checked_bytes;
  }
  out->set_blocks_done(std::min(blocks, blocks_max));
  out->set_bytes_done(std::min(bytes, bytes_max));
  out->set_source_bytes(source);
  out->set_promoted_bytes(promoted);
  out->set_shared_bytes(shared);
  out->set_read_bytes(read);
  out->set_checked_bytes(checked);
  out->set_elapsed_ms(Ms((running() ? now : ended) - began));
}

}  // namespace ems::controller
