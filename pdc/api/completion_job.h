#pragma once
// One generation for one client: what the generator says becomes an answer; a client that leaves, a
// deadline that passes or a stop string cancels the generation.
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "common/guarded.h"
#include "fabric/http/http_exchange.h"
#include "pdc/api/api_error.h"
#include "pdc/api/api_metrics.h"
#include "pdc/api/completion_reply.h"
#include "pdc/api/generate.h"
#include "pdc/api/text_filter.h"

namespace ems::pdc::api {

// Threading: the generator's calls come one at a time; deadlines and departures from the
// connection's thread only cancel.
class CompletionJob final : public GenerationSink,
                            public std::enable_shared_from_this<CompletionJob> {
 public:
  struct Plan {
    std::shared_ptr<fabric::HttpExchange> exchange;
    CompletionReply reply;
    bool stream = false;
    std::vector<std::string> stop;
    const ModelMetrics* metrics;  // outlives the job
    // Once, when the generator has nothing to do for this any more; then `on_answer` has been
    // called with the answer's status unless the client had left.
    std::function<void()> on_release;
    std::function<void(int status)> on_answer;
  };
  explicit CompletionJob(Plan plan);
  // A generator that drops a generation without a last word is an error of its own: 500.
  ~CompletionJob() override;

  // Starts it and sees to its end, whatever comes. Never blocks.
  void Run(Generator* generator, GenerateRequest request);

  void OnPrompt(const PromptUsage& usage) override;
  void OnTokens(std::string_view bytes, uint32_t tokens) override;
  void OnFinish(FinishReason reason) override;
  void OnError(const Status& why) override;

 private:
  enum class Cause { kNone, kGone, kDeadline, kStop };
  struct Handle {
    std::shared_ptr<Generation> generation;
    bool cancelled = false;
    bool released = false;  // its last word was said: a generation that keeps its sink goes
  };

  void Cancel(Cause cause);
  void KeepDeadline(TimePoint at);
  void BeginStream();
  void End(FinishReason reason, std::string_view rest);
  void Fail(const ApiError& error, Ending ending);
  void Release();

  const Plan plan_;
  TextFilter filter_;
  std::string text_;  // of an answer that does not stream
  TokenUsage usage_;
  GenerationTimes times_;
  bool running_ = false;
  bool streaming_ = false;
  bool ended_ = false;  // the client has its answer; the generator may go on for a moment
  bool released_ = false;
  std::atomic<Cause> cause_{
      Cause::kNone};  // the first one; relaxed: read after the cancel it led to
  Guarded<Handle> handle_;
};

}  // namespace ems::pdc::api
