#include "pdc/api/completion_job.h"

#include <utility>

#include "common/check.h"
#include "common/logging.h"

namespace ems::pdc::api {
namespace {

// How long a cancelled generation may take to say its last word until its client is answered
// without.
constexpr Duration kCancelPatience = std::chrono::seconds(5);

ApiError DeadlineError() {
  return {.status = 504,
          .message = "the request's deadline passed before its answer was complete",
          .code = "deadline_exceeded"};
}

TimePoint Now() { return Clock::System().Now(); }

}  // namespace

CompletionJob::CompletionJob(Plan plan) : plan_(std::move(plan)), filter_(plan_.stop) {}

CompletionJob::~CompletionJob() {
  if (released_) return;
  if (!ended_) OnError(Error(StatusCode::kInternal, "the generator dropped a generation"));
  Release();
}

void CompletionJob::Run(Generator* generator, GenerateRequest request) {
  times_.arrived = Now();
  const std::weak_ptr<CompletionJob> weak = weak_from_this();
  plan_.exchange->OnGone([weak] {
    if (const auto self = weak.lock()) self->Cancel(Cause::kGone);
  });
  KeepDeadline(request.deadline.at());
  plan_.metrics->OnQueued();
  auto started = generator->Start(std::move(request), shared_from_this());
  if (!started.ok()) {
    Fail(ErrorOf(started.status()), Ending::kError);
    return Release();
  }
  auto handle = handle_.Lock();
  const bool cancelled = handle->cancelled;
  if (!handle->released) handle->generation = *started;
  handle.Unlock();
  if (cancelled) (*started)->Cancel();
}

void CompletionJob::KeepDeadline(TimePoint at) {
  const std::weak_ptr<CompletionJob> weak = weak_from_this();
  plan_.exchange->OnDeadline(at, [weak, at, exchange = plan_.exchange] {
    if (const auto self = weak.lock()) self->Cancel(Cause::kDeadline);
    // The generator ends it; should it not, the client is not to wait for it.
    exchange->OnDeadline(at + kCancelPatience, [exchange] {
      if (!exchange->Reply(ErrorReply(DeadlineError()))) exchange->Abort();
    });
  });
}

void CompletionJob::Cancel(Cause cause) {
  Cause none = Cause::kNone;
  cause_.compare_exchange_strong(none, cause, std::memory_order_relaxed);
  auto handle = handle_.Lock();
  handle->cancelled = true;
  const std::shared_ptr<Generation> generation = handle->generation;
  handle.Unlock();
  if (generation != nullptr) generation->Cancel();
}

void CompletionJob::OnPrompt(const PromptUsage& usage) {
  usage_.prompt = usage;
  times_.prompt = Now();
  running_ = true;
  plan_.metrics->OnRunning(times_, usage);
}

void CompletionJob::OnTokens(std::string_view bytes, uint32_t tokens) {
  if (ended_) return;  // a step that was under way when it was cancelled
  if (!running_) OnPrompt({});
  const TimePoint now = Now();
  plan_.metrics->OnTokens(times_, now, tokens);
  if (times_.first == TimePoint()) times_.first = now;
  times_.last = now;
  usage_.completion_tokens += tokens;
  const std::string text = filter_.Feed(bytes);
  if (filter_.stopped()) {
    End(FinishReason::kStop, text);
    return Cancel(Cause::kStop);
  }
  if (!plan_.stream) {
    text_ += text;
  } else if (!text.empty()) {
    BeginStream();
    plan_.exchange->Write(plan_.reply.Part(text));
  }
}

void CompletionJob::BeginStream() {
  if (std::exchange(streaming_, true)) return;
  plan_.on_answer(200);
  plan_.exchange->StartStream(
      {.content_type = "text/event-stream; charset=utf-8",
       .headers = {{"Cache-Control", "no-cache"}, {"X-Request-Id", plan_.reply.id()}},
       .body = plan_.reply.Opening()});
}

void CompletionJob::OnFinish(FinishReason reason) {
  if (!ended_) End(reason, filter_.Finish());
  Release();
}

void CompletionJob::End(FinishReason reason, std::string_view rest) {
  EMS_CHECK(!ended_, "answer {} has ended twice", plan_.reply.id());
  ended_ = true;
  if (plan_.stream) {
    BeginStream();
    plan_.exchange->Write(plan_.reply.Closing(rest, reason, usage_) + std::string(kStreamDone));
    plan_.exchange->Finish();
  } else {
    text_ += rest;
    plan_.on_answer(200);
    plan_.exchange->Reply({.headers = {{"X-Request-Id", plan_.reply.id()}},
                           .body = plan_.reply.Whole(text_, reason, usage_) + "\n"});
  }
  const Ending ending = reason == FinishReason::kStop ? Ending::kStop : Ending::kLength;
  plan_.metrics->OnEnded(times_, Now(), usage_, ending);
}

void CompletionJob::OnError(const Status& why) {
  const Cause cause = cause_.load(std::memory_order_relaxed);
  if (ended_) {
    // The stop string has ended it; this is the generator's word on being cancelled.
  } else if (cause == Cause::kGone) {
    ended_ = true;
    plan_.metrics->OnEnded(times_, Now(), usage_, Ending::kAbort);
  } else if (cause == Cause::kDeadline) {
    Fail(DeadlineError(), Ending::kError);
  } else if (why.code() == StatusCode::kCancelled) {  // not by us: it is stopping
    Fail({.status = 503, .message = "the generation was abandoned", .code = "unavailable"},
         Ending::kError);
  } else {
    Fail(ErrorOf(why), Ending::kError);
    if (ErrorOf(why).status == 500) {
      EMS_LOG(kError, "pdc", "generation failed id={} why=\"{}\"", plan_.reply.id(), ToString(why));
    }
  }
  Release();
}

void CompletionJob::Fail(const ApiError& error, Ending ending) {
  ended_ = true;
  if (streaming_) {
    // No [DONE] after it: a client that skips errors sees that the answer is not whole.
    plan_.exchange->Write(StreamEvent(ErrorJson(error)));
    plan_.exchange->Finish();
  } else {
    plan_.on_answer(error.status);
    fabric::HttpReply reply = ErrorReply(error);
    reply.headers.emplace_back("X-Request-Id", plan_.reply.id());
    plan_.exchange->Reply(reply);
  }
  plan_.metrics->OnEnded(times_, Now(), usage_, ending);
}

void CompletionJob::Release() {
  if (std::exchange(released_, true)) return;
  plan_.metrics->OnReleased(running_);
  plan_.on_release();
  // The generation may hold the last other reference to this.
  const std::shared_ptr<CompletionJob> self = weak_from_this().lock();
  std::shared_ptr<Generation> generation;
  auto handle = handle_.Lock();
  handle->released = true;
  handle->generation.swap(generation);
  handle.Unlock();
}

}  // namespace ems::pdc::api
