#include "mp_server/lease/heartbeat.h"

#include <algorithm>
#include <utility>

#include "cluster/while_starting.h"
#include "common/check.h"
#include "common/logging.h"
#include "proto/controller.pb.h"

namespace ems::server {
namespace {

constexpr Duration kRegisterDeadline = std::chrono::seconds(2);
constexpr Duration kBeatDeadlineMax = std::chrono::seconds(1);
// Of a server that is to stop: it hears soon that others have what it had.
constexpr Duration kStopBeatMost = std::chrono::milliseconds(100);
constexpr int kGoodbyesMax = 60;  // each after a heartbeat's time

}  // namespace

Heartbeat::Heartbeat(Options options)
    : options_(std::move(options)),
      keeper_(options_.self, options_.ownership, options_.views, std::move(options_.events)) {
  EMS_CHECK(options_.controller != nullptr && options_.ownership != nullptr &&
            options_.views != nullptr);
}

Heartbeat::~Heartbeat() { Stop(); }

void Heartbeat::Start() {
  thread_ = Thread("ems-beat", [this] { Run(); });
}

void Heartbeat::Stop() {
  {
    auto wake = wake_.Lock();
    wake->stop = true;
  }
  wakeup_.notify_all();
}

void Heartbeat::Halt() {
  Stop();
  thread_.Join();
}

void Heartbeat::Poke() {
  {
    auto wake = wake_.Lock();
    wake->poked = true;
  }
  wakeup_.notify_all();
}

void Heartbeat::AnnounceStop() {
  stop_announced_.store(true, std::memory_order_release);
  Poke();
}

// A controller that has only just started, or changes places with another one, will answer.
void Heartbeat::OnStopAnswer(const Status& status, bool may_stop) {
  if (status.ok()) {
    stop_answer_.store(may_stop ? StopAnswer::kMayStop : StopAnswer::kServeOn,
                       std::memory_order_release);
  } else if (stop_answer() == StopAnswer::kNone && !IsStarting(status)) {
    stop_answer_.store(StopAnswer::kUnreachable, std::memory_order_release);
  }
}

bool Heartbeat::Sleep(Duration time) {
  auto wake = wake_.Lock();
  wake.WaitFor(wakeup_, time, [](const Wake& now) { return now.stop || now.poked; });
  wake->poked = false;
  return wake->stop;
}

void Heartbeat::Leave(bool keeps_slots, Duration patience) {
  Halt();
  const NodeId self = options_.ownership->self();
  if (self == kNoNode || keeper_.replaced()) return;
  const Status left = options_.controller->Leave(self, options_.self.boot_id, keeps_slots,
                                                 Deadline::After(patience));
  if (!left.ok()) EMS_LOG(kWarn, "mp_server", "could not leave in order: {}", ToString(left));
}

void Heartbeat::Run() {
  while (true) {
    const std::optional<Duration> pause = keeper_.registered() ? Beat() : Register();
    if (!pause.has_value()) return SayGoodbye();
    if (Sleep(*pause)) return;
  }
}

// The controller knows then that this process takes no Puts any more.
void Heartbeat::SayGoodbye() {
  for (int tries = 0; tries < kGoodbyesMax; ++tries) {
    const Status heard =
        options_.controller->Leave(options_.ownership->self(), options_.self.boot_id,
                                   /*keeps_slots=*/false, Deadline::After(kBeatDeadlineMax));
    if (heard.ok() || Sleep(keeper_.heartbeat())) return;
  }
}

std::optional<Duration> Heartbeat::Register() {
  v1::RegisterRequest request;
  v1::RegisterReply reply;
  keeper_.MakeRegister(&request);
  const Status status =
      options_.controller->Register(request, &reply, Deadline::After(kRegisterDeadline));
  options_.on_beat(status.ok());
  return keeper_.OnRegister(status, reply);
}

std::optional<Duration> Heartbeat::Beat() {
  v1::HeartbeatRequest request;
  v1::HeartbeatReply reply;
  keeper_.MakeHeartbeat(options_.usage(), options_.highest_view(), &request);
  for (const NodeId node : options_.pulling_from())
    if (node != options_.ownership->self()) request.add_pulling_from(node.value());
  for (const NodeId node : options_.vouching_for()) request.add_vouching_for(node.value());
  const Duration patience =
      std::min(std::max(keeper_.heartbeat(), kBeatDeadlineMax / 4), kBeatDeadlineMax);
  const bool stops = stop_announced_.load(std::memory_order_acquire);
  request.set_stopping(stops);
  const TimePoint sent = Clock::System().Now();
  const Status status = options_.controller->Heartbeat(request, &reply, Deadline::After(patience));
  options_.on_beat(status.ok());
  if (stops) OnStopAnswer(status, reply.may_stop());
  const auto pause = keeper_.OnHeartbeat(status, reply, sent, Clock::System().Now());
  return pause && stops ? std::min(*pause, kStopBeatMost) : pause;
}

}  // namespace ems::server
