#include "bench/serve/serve_client.h"

#include <nlohmann/json.hpp>

#include "bench/serve/http_exchange.h"
#include "common/bytes.h"

namespace ems::bench {
namespace {

using Json = nlohmann::json;

constexpr size_t kEventBytesMax = kMiB;
constexpr size_t kAnswerBytesMax = kMiB;
constexpr std::string_view kEventEnd = "\n\n";
constexpr std::string_view kData = "data: ";

StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 429:
      return StatusCode::kResourceExhausted;
    case 503:
      return StatusCode::kUnavailable;
    case 504:
      return StatusCode::kDeadlineExceeded;
    default:
      return http_status >= 400 && http_status < 500 ? StatusCode::kInvalidArgument
                                                     : StatusCode::kInternal;
  }
}

// What lies at a place of a document: a text, or a number; nothing where it is not one.
std::optional<std::string> TextAt(const Json& json, const char* place) {
  const Json::json_pointer at(place);
  if (!json.contains(at) || !json[at].is_string()) return std::nullopt;
  return json[at].get<std::string>();
}

uint64_t NumberAt(const Json& json, const char* place) {
  const Json::json_pointer at(place);
  return json.contains(at) && json[at].is_number_unsigned() ? json[at].get<uint64_t>() : 0;
}

// The text in {"error": {"message": …}}; what there is otherwise.
std::string ErrorText(const std::string& body) {
  return TextAt(Json::parse(body, nullptr, false), "/error/message").value_or(Printable(body));
}

Status RefusalOf(const HttpAnswer& answer) {
  return Error(CodeOf(answer.status), "HTTP {}: {}", answer.status, ErrorText(answer.text));
}

std::string BodyOf(const std::string& model, const ServeRequest& request) {
  Json body = {{"model", model},
               {"prompt", request.prompt},
               {"max_tokens", request.output_tokens},
               {"temperature", request.temperature},
               {"ignore_eos", true},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (request.seed) body["seed"] = *request.seed;
  if (!request.cache_salt.empty()) body["cache_salt"] = request.cache_salt;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The events of a stream so far. Threading: one thread.
class StreamReader final {
 public:
  StreamReader(ServeOutcome* outcome, TimePoint due) : outcome_(outcome), due_(due) {}

  // `now`: when these bytes came.
  Status Feed(std::string_view bytes, TimePoint now) {
    buffer_.append(bytes);
    size_t at = 0;
    for (size_t end = 0; (end = buffer_.find(kEventEnd, at)) != std::string::npos;) {
      EMS_RETURN_IF_ERROR(OnEvent(std::string_view(buffer_).substr(at, end - at), now));
      at = end + kEventEnd.size();
    }
    buffer_.erase(0, at);
    if (buffer_.size() > kEventBytesMax)
      return Error(StatusCode::kInternal, "an event of more than {} B", kEventBytesMax);
    return OkStatus();
  }

  Status Finish(TimePoint now) const {
    if (!done_) return Error(StatusCode::kUnavailable, "the stream was cut");
    if (!has_usage_) return Error(StatusCode::kInternal, "a stream without usage");
    if (outcome_->completion_tokens == 0 || last_ == TimePoint())
      return Error(StatusCode::kInternal, "a stream without tokens");
    outcome_->e2e = now - due_;
    return OkStatus();
  }

 private:
  Status OnEvent(std::string_view event, TimePoint now) {
    if (!event.starts_with(kData))
      return Error(StatusCode::kInternal, "not an event: {}", Printable(event));
    event.remove_prefix(kData.size());
    if (event == "[DONE]") {
      done_ = true;
      return OkStatus();
    }
    const Json json = Json::parse(event, nullptr, false);
    if (!json.is_object())
      return Error(StatusCode::kInternal, "not an event: {}", Printable(event));
    if (json.contains("error"))
      return Error(StatusCode::kUnavailable, "the stream broke: {}", ErrorText(std::string(event)));
    if (json.contains("usage") && json["usage"].is_object()) {
      has_usage_ = true;
      outcome_->prompt_tokens = NumberAt(json, "/usage/prompt_tokens");
      outcome_->completion_tokens = NumberAt(json, "/usage/completion_tokens");
      outcome_->cached_tokens = NumberAt(json, "/usage/prompt_tokens_details/cached_tokens");
    }
    OnChoice(TextAt(json, "/choices/0/text").value_or(""),
             TextAt(json, "/choices/0/finish_reason").has_value(), now);
    return OkStatus();
  }

  // An answer of bytes that are no text is known to have begun when it ends.
  void OnChoice(const std::string& text, bool ends, TimePoint now) {
    const bool says = !text.empty();
    outcome_->text += text;
    if (last_ == TimePoint() && (says || ends)) {
      outcome_->ttft = now - due_;
    } else if (says) {
      outcome_->itl.push_back(now - last_);
    }
    if (says || ends) last_ = now;
  }

  ServeOutcome* const outcome_;
  const TimePoint due_;
  std::string buffer_;
  TimePoint last_;  // of the last event with text
  bool done_ = false;
  bool has_usage_ = false;
};

}  // namespace

Duration ServeOutcome::tpot() const {
  if (completion_tokens < 2) return Duration{0};
  return (e2e - ttft) / static_cast<int64_t>(completion_tokens - 1);
}

ServeOutcome ServeClient::Ask(const ServeRequest& request, TimePoint due) const {
  ServeOutcome outcome;
  StreamReader reader(&outcome, due);
  const Result<HttpAnswer> answer = ExchangeHttp(
      {.address = address_, .path = "/v1/completions", .body = BodyOf(model_, request)},
      Deadline::After(timeout_),
      [&](std::string_view bytes) { return reader.Feed(bytes, Clock::System().Now()); });
  const TimePoint now = Clock::System().Now();
  if (!answer.ok()) {
    outcome.status = answer.status();
  } else {
    outcome.status = answer->status == 200 ? reader.Finish(now) : RefusalOf(*answer);
  }
  return outcome;
}

Result<std::string> ServedModel(const std::string& address, Duration timeout) {
  std::string body;
  EMS_ASSIGN_OR_RETURN(const HttpAnswer answer,
                       ExchangeHttp({.address = address, .path = "/v1/models"},
                                    Deadline::After(timeout), [&](std::string_view bytes) {
                                      body += bytes;
                                      return body.size() <= kAnswerBytesMax
                                                 ? OkStatus()
                                                 : Error(StatusCode::kResourceExhausted,
                                                         "an endless list of models");
                                    }));
  if (answer.status != 200) return RefusalOf(answer);
  if (auto id = TextAt(Json::parse(body, nullptr, false), "/data/0/id")) return *std::move(id);
  return Error(StatusCode::kInternal, "{} names no model: {}", address, Printable(body));
}

}  // namespace ems::bench
