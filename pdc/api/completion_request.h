#pragma once
// The bodies of /v1/completions and /v1/chat/completions, read and checked. Bytes of strangers: any
// of them give a request within its bounds, or an error that names the field.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pdc/api/api_error.h"
#include "pdc/api/generate.h"

namespace ems::pdc::api {

inline constexpr size_t kStopsMax = 4;
inline constexpr size_t kStopBytesMax = 256;
inline constexpr size_t kNameBytesMax = 512;  // of user, cache_salt

enum class CompletionKind { kText, kChat };

struct CompletionRequest {
  CompletionKind kind = CompletionKind::kText;
  // What the generator is asked for, but for the id, the deadline and tokens_max. A conversation
  // has become its text already; `stop` has 4 strings at most, none empty, and not a chat's end of
  // turn.
  GenerateRequest generate = {};
  std::optional<uint64_t> tokens_max = {};  // none: whatever the server's default is
  bool stream = false;
  bool include_usage = false;  // of a stream
};

// Fields that we do not know are ignored; fields that ask for something that we do not do are
// errors unless they hold what we do anyway (n = 1, logprobs = null). Cost: O(bytes); memory up to
// 16 times the body.
std::variant<CompletionRequest, ApiError> ParseCompletionRequest(CompletionKind kind,
                                                                 std::string_view body);

}  // namespace ems::pdc::api
