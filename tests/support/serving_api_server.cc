// The serving API over a generator that repeats what it is told, one byte a token: for tests that
// drive the API from outside, and for looking at it without an engine.
//
//   serving_api_server [--requests-max N] [--body-bytes-max N]
//
// Prints "listening HOST:PORT", then a line for each generation that was cancelled, "cancelled ID".
// Ends with its standard input. A prompt's text (of a chat: the last message) is its script:
//   "hold TEXT"   says TEXT, then nothing more until it is cancelled
//   "full"        the queue is full
//   "lost"        the worker is lost before the first token
//   "break TEXT"  the worker is lost after TEXT
//   "bytes HEX"   says these bytes
//   else          says "You said: " and the text
// Half of a prompt's tokens, rounded down, come from the cache, unless it has a cache_salt.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "pdc/api/api_server.h"
#include "pdc/api/chat_template.h"

namespace ems::pdc::api {
namespace {

// Says all at once, within Start. Threading: thread-safe.
class Repeater final : public Generation {
 public:
  Repeater(GenerateRequest request, std::shared_ptr<GenerationSink> sink, ThreadPool* last_words)
      : request_(std::move(request)), last_words_(last_words) {
    auto state = state_.Lock();
    *state = std::move(sink);
  }

  void Cancel() override {
    // By another thread: Cancel calls nothing.
    const std::shared_ptr<GenerationSink> sink = TakeSink();
    if (sink == nullptr) return;
    std::printf("cancelled %s\n", request_.id.c_str());
    std::fflush(stdout);
    EMS_CHECK(last_words_->TrySubmit(
        [sink] { sink->OnError(Error(StatusCode::kCancelled, "cancelled")); }));
  }

  void Run() {
    std::shared_ptr<GenerationSink> sink;
    {
      auto state = state_.Lock();
      sink = *state;
    }
    const uint64_t tokens = request_.text.size() + request_.tokens.size();
    sink->OnPrompt(
        {.prompt_tokens = tokens, .cached_tokens = request_.cache_salt.empty() ? tokens / 2 : 0});
    const std::string script = Script();
    if (script == "lost") return EndWith(Error(StatusCode::kUnavailable, "the worker was lost"));
    const bool whole = Say(sink.get(), TextOf(script));
    if (script.starts_with("hold ")) return;
    if (script.starts_with("break ")) {
      return EndWith(Error(StatusCode::kUnavailable, "the worker was lost"));
    }
    if (const auto last = TakeSink()) {
      last->OnFinish(whole ? FinishReason::kStop : FinishReason::kLength);
    }
  }

  std::string Script() const {
    std::string text = request_.text;
    const size_t end = text.rfind(kEndOfTurnByte);
    if (end == std::string::npos) return text;
    text.resize(end);
    return text.substr(text.rfind(kContentByte) + 1);
  }

 private:
  std::shared_ptr<GenerationSink> TakeSink() {
    auto state = state_.Lock();
    return std::exchange(*state, nullptr);
  }
  void EndWith(const Status& why) {
    if (const auto sink = TakeSink()) sink->OnError(why);
  }
  static std::string TextOf(const std::string& script) {
    for (const char* const word : {"hold ", "break "}) {
      if (script.starts_with(word)) return script.substr(std::strlen(word));
    }
    if (!script.starts_with("bytes ")) return "You said: " + script;
    std::string bytes;
    for (size_t i = 6; i + 1 < script.size(); i += 2) {
      bytes += static_cast<char>(std::strtoul(script.substr(i, 2).c_str(), nullptr, 16));
    }
    return bytes;
  }
  // False: tokens_max was too few.
  bool Say(GenerationSink* sink, const std::string& text) const {
    const size_t tokens = std::min<uint64_t>(text.size(), request_.tokens_max);
    for (size_t i = 0; i < tokens; ++i) sink->OnTokens(text.substr(i, 1), 1);
    return tokens == text.size();
  }

  const GenerateRequest request_;
  Guarded<std::shared_ptr<GenerationSink>> state_;  // null once it has had its last word
  ThreadPool* const last_words_;
};

class RepeatingGenerator final : public Generator {
 public:
  const std::vector<ModelInfo>& models() const override { return models_; }
  uint64_t CountTokens(const ModelInfo&, std::string_view text) const override {
    return text.size();
  }
  Status Ready() const override { return OkStatus(); }
  Result<std::shared_ptr<Generation>> Start(GenerateRequest request,
                                            std::shared_ptr<GenerationSink> sink) override {
    auto one = std::make_shared<Repeater>(std::move(request), std::move(sink), &last_words_);
    if (one->Script() == "full") {
      return Error(StatusCode::kResourceExhausted, "the queue is full");
    }
    one->Run();
    return std::shared_ptr<Generation>(one);
  }

 private:
  const std::vector<ModelInfo> models_ = {{.name = "repeat",
                                           .context_tokens_max = 4096,
                                           .vocabulary = 256,
                                           .created_s = 1'700'000'000}};
  ThreadPool last_words_{"last-words", 1, 4096};
};

int Run(int argc, char** argv) {
  ApiOptions options{.listen = "127.0.0.1:0"};
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::string(argv[i]) == "--requests-max")
      options.requests_max = static_cast<uint32_t>(value);
    if (std::string(argv[i]) == "--body-bytes-max") options.body_bytes_max = value;
  }
  MetricsRegistry metrics;
  RepeatingGenerator generator;
  auto server = ApiServer::Start(options, &generator, &metrics);
  if (!server.ok()) {
    std::fprintf(stderr, "serving_api_server: %s\n", ToString(server.status()).c_str());
    return 1;
  }
  std::printf("listening %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  (*server)->Stop(std::chrono::seconds(1));
  return 0;
}

}  // namespace
}  // namespace ems::pdc::api

int main(int argc, char** argv) { return ems::pdc::api::Run(argc, argv); }
