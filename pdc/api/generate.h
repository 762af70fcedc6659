#pragma once
// The interface between the HTTP API and the generator of tokens: the API asks, the generator
// answers with events. Implemented by the serving loop, and by a scripted fake in tests.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::pdc::api {

struct ModelInfo {
  std::string name;
  uint64_t context_tokens_max = 0;  // prompt and completion together
  uint32_t vocabulary = 0;          // token ids are below it
  int64_t created_s = 0;            // seconds since 1970
  std::string owned_by = "ems";
};

struct SamplingOptions {
  double temperature = 1.0;           // 0 … 2; 0: greedy
  double top_p = 1.0;                 // above 0, up to 1
  std::optional<uint64_t> seed = {};  // none: the generator picks one
};

struct GenerateRequest {
  std::string id = {};     // of the answer, for logs: "cmpl-…"
  std::string model = {};  // one of models()
  // Either `text`, bytes for the generator's tokenizer, or `tokens`, each below the vocabulary.
  std::string text = {};
  std::vector<uint32_t> tokens = {};
  uint64_t tokens_max = 16;  // of the completion, at least 1; with the prompt the context has room
  SamplingOptions sampling = {};
  // Where the text ends. The API cuts the text itself and cancels what goes on; a generator that
  // looks for them, too, saves a step.
  std::vector<std::string> stop = {};
  bool ignore_eos = false;      // go on to tokens_max, whatever comes
  std::string user = {};        // as sent; for accounting
  std::string cache_salt = {};  // part of the cache's domain: others' blocks are not seen
  Deadline deadline = Deadline(TimePoint::max());  // then OnError(kDeadlineExceeded)
};

struct PromptUsage {
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of them, those whose KV came from the cache
};

enum class FinishReason {
  kStop,    // end of sequence, or a stop string
  kLength,  // tokens_max, or the context is full
};

// The receiver of one generation's events. At most one OnPrompt, before the first OnTokens; at last
// exactly one of OnFinish and OnError, also after Cancel. Threading: one call at a time, from any
// thread of the generator's; within Start, too. The calls do not block and may call Cancel, so the
// generator holds no lock meanwhile.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // The prompt has left the queue, and is looked up: prefill begins.
  virtual void OnPrompt(const PromptUsage& usage) = 0;
  // `tokens` (at least 1) further tokens, and their bytes. Any bytes: characters may be cut, and
  // may be none. Valid during the call.
  virtual void OnTokens(std::string_view bytes, uint32_t tokens) = 0;
  virtual void OnFinish(FinishReason reason) = 0;
  // kDeadlineExceeded · kCancelled · kUnavailable no worker (try again) · kResourceExhausted no
  // room came in time · kInvalidArgument · kInternal.
  virtual void OnError(const Status& why) = 0;
};

// A handle of one that is under way. The API drops it within the last event: the generator keeps
// its own reference as long as it calls the sink. Threading: thread-safe.
class Generation {
 public:
  virtual ~Generation() = default;
  // Ends it as soon as possible, with OnError(kCancelled) unless it has ended. Never blocks, and
  // calls nothing.
  virtual void Cancel() = 0;
};

// Threading: thread-safe.
class Generator {
 public:
  virtual ~Generator() = default;
  // At least one; does not change.
  virtual const std::vector<ModelInfo>& models() const = 0;
  // How many tokens `text` is as a prompt. Cost: O(bytes), no waiting.
  virtual uint64_t CountTokens(const ModelInfo& model, std::string_view text) const = 0;
  // OK when requests would be served now; else why not, for /readyz.
  virtual Status Ready() const = 0;
  // Queues a request; never blocks. `sink` is kept until its last event. Without OK there is no
  // event. Errors: kResourceExhausted  the queue is full: try again later    kUnavailable
  // nobody to serve it    kInvalidArgument
  virtual Result<std::shared_ptr<Generation>> Start(GenerateRequest request,
                                                    std::shared_ptr<GenerationSink> sink) = 0;
};

}  // namespace ems::pdc::api
