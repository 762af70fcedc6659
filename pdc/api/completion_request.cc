#include "pdc/api/completion_request.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "pdc/api/chat_template.h"

namespace ems::pdc::api {
namespace {

using Json = nlohmann::json;

// Empty: fine.
using Problem = std::optional<ApiError>;

constexpr double kTemperatureMax = 2.0;

#define EMS_PDC_CHECK(expr) \
  if (Problem problem_ = (expr); problem_) return problem_

Problem Wrong(const std::string& param, const std::string& message) {
  return BadParam(param, "'" + param + "' " + message);
}

Problem WrongType(const std::string& param, const std::string& wanted) {
  return BadParam(param, "'" + param + "' has to be " + wanted, "invalid_type");
}

Problem Unsupported(const std::string& param, const std::string& message) {
  return BadParam(param, "'" + param + "' " + message, "unsupported_parameter");
}

// The value of a field; null when it is missing or null.
const Json* Find(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

Problem ReadBool(const Json& object, const char* name, bool* value) {
  const Json* const json = Find(object, name);
  if (json == nullptr) return {};
  if (!json->is_boolean()) return WrongType(name, "true or false");
  *value = json->get<bool>();
  return {};
}

Problem ReadText(const Json& object, const char* name, size_t bytes_max, std::string* value) {
  const Json* const json = Find(object, name);
  if (json == nullptr) return {};
  if (!json->is_string()) return WrongType(name, "a string");
  *value = json->get_ref<const std::string&>();
  if (value->size() > bytes_max) {
    return Wrong(name, "is longer than " + std::to_string(bytes_max) + " bytes");
  }
  return {};
}

Problem ReadNumber(const Json& object, const char* name, double max, double* value) {
  const Json* const json = Find(object, name);
  if (json == nullptr) return {};
  if (!json->is_number()) return WrongType(name, "a number");
  const double number = json->get<double>();
  if (!(number >= 0 && number <= max)) {
    return Wrong(name, "has to be from 0 to " + std::to_string(static_cast<int>(max)));
  }
  *value = number;
  return {};
}

Problem ReadCount(const Json& object, const char* name, std::optional<uint64_t>* value) {
  const Json* const json = Find(object, name);
  if (json == nullptr) return {};
  if (!json->is_number_integer()) return WrongType(name, "an integer");
  if (!json->is_number_unsigned() || json->get<uint64_t>() == 0) {
    return Wrong(name, "has to be at least 1");
  }
  *value = json->get<uint64_t>();
  return {};
}

Problem ReadSampling(const Json& body, SamplingOptions* sampling) {
  EMS_PDC_CHECK(ReadNumber(body, "temperature", kTemperatureMax, &sampling->temperature));
  EMS_PDC_CHECK(ReadNumber(body, "top_p", 1, &sampling->top_p));
  if (sampling->top_p == 0) return Wrong("top_p", "has to be above 0");
  if (const Json* const seed = Find(body, "seed"); seed != nullptr) {
    if (!seed->is_number_integer()) return WrongType("seed", "an integer");
    // Negative ones are as good as others.
    sampling->seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                                : static_cast<uint64_t>(seed->get<int64_t>());
  }
  return {};
}

Problem ReadStop(const Json& body, std::vector<std::string>* stops) {
  const Json* const stop = Find(body, "stop");
  if (stop == nullptr) return {};
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kStopsMax) {
    return Wrong("stop", "has more than " + std::to_string(kStopsMax) + " strings");
  }
  for (const Json& one : list) {
    if (!one.is_string()) return WrongType("stop", "a string or an array of up to 4 strings");
    const std::string& text = one.get_ref<const std::string&>();
    if (text.empty()) return Wrong("stop", "has an empty string");
    if (text.size() > kStopBytesMax) {
      return Wrong("stop", "has a string longer than " + std::to_string(kStopBytesMax) + " bytes");
    }
    stops->push_back(text);
  }
  return {};
}

Problem ReadStream(const Json& body, CompletionRequest* request) {
  EMS_PDC_CHECK(ReadBool(body, "stream", &request->stream));
  const Json* const options = Find(body, "stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) return WrongType("stream_options", "an object");
  if (!request->stream) return Wrong("stream_options", "is for requests with 'stream': true");
  return ReadBool(*options, "include_usage", &request->include_usage);
}

// Whether a field that we do not support holds what we do anyway.
bool IsHarmless(const Json& value, const Json& harmless) {
  if (value == harmless || value == "") return true;
  return (value.is_array() || value.is_object()) && value.empty();
}

struct UnsupportedField {
  const char* name;
  Json harmless;  // null: only null and what is empty
  const char* why;
};

Problem CheckUnsupported(const Json& body, CompletionKind kind) {
  static const char* const kOne = "has to be 1: one answer to a request";
  static const char* const kNot = "is not supported";
  static const std::vector<UnsupportedField> kBoth = {
      {"n", 1, kOne},
      {"best_of", 1, kOne},
      {"frequency_penalty", 0, "has to be 0: penalties are not supported"},
      {"presence_penalty", 0, "has to be 0: penalties are not supported"},
      {"repetition_penalty", 1, "has to be 1: penalties are not supported"},
      {"logit_bias", nullptr, kNot},
      {"min_p", 0, "has to be 0"},
      {"min_tokens", 0, "has to be 0"},
  };
  static const std::vector<UnsupportedField> kText = {
      {"echo", false, "has to be false: the prompt is not sent back"},
      {"logprobs", nullptr, "is not supported: probabilities are not given"},
      {"suffix", nullptr, "is not supported: text is not inserted"},
  };
  static const std::vector<UnsupportedField> kChat = {
      {"logprobs", false, "has to be false: probabilities are not given"},
      {"top_logprobs", 0, "has to be 0: probabilities are not given"},
      {"tools", nullptr, "is not supported: there are no tool calls"},
      {"functions", nullptr, "is not supported: there are no tool calls"},
      {"tool_choice", "none", "has to be \"none\": there are no tool calls"},
      {"function_call", "none", "has to be \"none\": there are no tool calls"},
      {"modalities", Json::array({"text"}), "has to be [\"text\"]"},
      {"audio", nullptr, kNot},
      {"prediction", nullptr, kNot},
      {"web_search_options", nullptr, kNot},
      {"response_format", Json{{"type", "text"}}, "has to be {\"type\": \"text\"}"},
  };
  for (const auto* fields : {&kBoth, kind == CompletionKind::kText ? &kText : &kChat}) {
    for (const UnsupportedField& field : *fields) {
      const Json* const value = Find(body, field.name);
      if (value != nullptr && !IsHarmless(*value, field.harmless)) {
        return Unsupported(field.name, field.why);
      }
    }
  }
  if (const Json* const top_k = Find(body, "top_k");
      top_k != nullptr && *top_k != 0 && *top_k != -1) {
    return Unsupported("top_k", "has to be 0 or -1: only top_p is supported");
  }
  return {};
}

Problem ReadTokens(const Json& list, std::vector<uint32_t>* tokens) {
  tokens->reserve(list.size());
  for (const Json& token : list) {
    if (!token.is_number_unsigned() ||
        token.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
      return WrongType("prompt", "a string or an array of token ids");
    }
    tokens->push_back(token.get<uint32_t>());
  }
  return {};
}

Problem ReadPrompt(const Json& body, CompletionRequest* request) {
  const Json* prompt = Find(body, "prompt");
  if (prompt == nullptr) return BadParam("prompt", "'prompt' is missing", "missing_parameter");
  // Arrays of prompts are fine as long as there is one.
  if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    if (prompt->size() > 1) return Unsupported("prompt", "has to be one prompt a request");
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    request->generate.text = prompt->get_ref<const std::string&>();
    return request->generate.text.empty() ? Wrong("prompt", "is empty") : Problem();
  }
  if (!prompt->is_array()) return WrongType("prompt", "a string or an array of token ids");
  if (prompt->empty()) return Wrong("prompt", "is empty");
  return ReadTokens(*prompt, &request->generate.tokens);
}

Problem ReadContent(const Json& message, const std::string& param, ChatMessage* into) {
  const Json* const content = Find(message, "content");
  if (content == nullptr) {
    // An assistant's turn may have been empty.
    return into->role == "assistant" ? Problem()
                                     : WrongType(param, "a string or an array of parts");
  }
  if (content->is_string()) {
    into->content = content->get_ref<const std::string&>();
    return {};
  }
  if (!content->is_array()) return WrongType(param, "a string or an array of parts");
  for (const Json& part : *content) {
    if (!part.is_object() || part.value("type", Json()) != "text") {
      return Unsupported(param, "has a part that is not {\"type\": \"text\"}");
    }
    const Json* const text = Find(part, "text");
    if (text == nullptr || !text->is_string()) {
      return WrongType(param, "made of parts with a 'text' string");
    }
    into->content += text->get_ref<const std::string&>();
  }
  return {};
}

Problem ReadMessages(const Json& body, CompletionRequest* request) {
  const Json* const list = Find(body, "messages");
  if (list == nullptr) return BadParam("messages", "'messages' is missing", "missing_parameter");
  if (!list->is_array() || list->empty()) {
    return WrongType("messages", "an array of at least one message");
  }
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    const std::string param = "messages[" + std::to_string(i) + "]";
    if (!message.is_object()) return WrongType(param, "an object with 'role' and 'content'");
    const Json* const role = Find(message, "role");
    ChatMessage read;
    if (role != nullptr && role->is_string()) read.role = role->get_ref<const std::string&>();
    if (read.role != "system" && read.role != "developer" && read.role != "user" &&
        read.role != "assistant") {
      return Wrong(param + ".role", "has to be system, developer, user or assistant");
    }
    if (const Json* const calls = Find(message, "tool_calls");
        calls != nullptr && !calls->empty()) {
      return Unsupported(param + ".tool_calls", "is not supported: there are no tool calls");
    }
    EMS_PDC_CHECK(ReadContent(message, param + ".content", &read));
    messages.push_back(std::move(read));
  }
  request->generate.text = ChatPrompt(messages);
  return {};
}

Problem Read(const Json& body, CompletionRequest* request) {
  if (!body.is_object()) return ApiError{.status = 400, .message = "the body is not an object"};
  EMS_PDC_CHECK(ReadText(body, "model", kNameBytesMax, &request->generate.model));
  if (request->generate.model.empty()) {
    return BadParam("model", "'model' is missing", "missing_parameter");
  }
  EMS_PDC_CHECK(CheckUnsupported(body, request->kind));
  EMS_PDC_CHECK(ReadCount(body, "max_tokens", &request->tokens_max));
  if (request->kind == CompletionKind::kChat) {
    std::optional<uint64_t> newer;
    EMS_PDC_CHECK(ReadCount(body, "max_completion_tokens", &newer));
    if (newer && request->tokens_max && *newer != *request->tokens_max) {
      return Wrong("max_completion_tokens", "differs from 'max_tokens', its older name");
    }
    if (newer) request->tokens_max = newer;
  }
  EMS_PDC_CHECK(ReadSampling(body, &request->generate.sampling));
  EMS_PDC_CHECK(ReadStop(body, &request->generate.stop));
  EMS_PDC_CHECK(ReadStream(body, request));
  EMS_PDC_CHECK(ReadBool(body, "ignore_eos", &request->generate.ignore_eos));
  EMS_PDC_CHECK(ReadText(body, "user", kNameBytesMax, &request->generate.user));
  EMS_PDC_CHECK(ReadText(body, "cache_salt", kNameBytesMax, &request->generate.cache_salt));
  return request->kind == CompletionKind::kText ? ReadPrompt(body, request)
                                                : ReadMessages(body, request);
}

}  // namespace

std::variant<CompletionRequest, ApiError> ParseCompletionRequest(CompletionKind kind,
                                                                 std::string_view body) {
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::parse_error& error) {
    return ApiError{.status = 400,
                    .message = "the body is not JSON: wrong at byte " + std::to_string(error.byte),
                    .code = "invalid_json"};
  } catch (const Json::exception&) {  // a number that no double holds
    return ApiError{.status = 400, .message = "the body is not JSON", .code = "invalid_json"};
  }
  CompletionRequest request{.kind = kind};
  if (Problem problem = Read(json, &request); problem) return std::move(*problem);
  return request;
}

}  // namespace ems::pdc::api
