#include "bench/serve_client.h"

#include <nlohmann/json.hpp>

#include "bench/http_exchange.h"
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

// The text in {"error": {"message": …}}; what there is otherwise.
std::string ErrorText(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    const auto message = json["error"].find("message");
    if (message != json["error"].end() && message->is_string()) return message->get<std::string>();
  }
  return Printable(body);
}

Status RefusalOf(HttpExchange* exchange) {
  const Result<std::string> body = exchange->ReadAll(kAnswerBytesMax);
  return Error(CodeOf(exchange->status()), "HTTP {}: {}", exchange->status(),
               body.ok() ? ErrorText(*body) : ToString(body.status()));
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

uint64_t NumberIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

// What a stream has said so far. Threading: one thread.
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
    if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object())
      OnUsage(*usage);
    if (const auto choices = json.find("choices");
        choices != json.end() && choices->is_array() && !choices->empty())
      OnChoice(choices->front(), now);
    return OkStatus();
  }

  void OnUsage(const Json& usage) {
    has_usage_ = true;
    outcome_->prompt_tokens = NumberIn(usage, "prompt_tokens");
    outcome_->completion_tokens = NumberIn(usage, "completion_tokens");
    const auto details = usage.find("prompt_tokens_details");
    if (details != usage.end() && details->is_object())
      outcome_->cached_tokens = NumberIn(*details, "cached_tokens");
  }

  // An answer of bytes that are no text is known to have begun when it ends.
  void OnChoice(const Json& choice, TimePoint now) {
    if (!choice.is_object()) return;
    const auto text = choice.find("text");
    const bool says = text != choice.end() && text->is_string() && !text->empty() &&
                      !text->get_ref<const std::string&>().empty();
    const auto reason = choice.find("finish_reason");
    const bool ends = reason != choice.end() && reason->is_string();
    if (says) outcome_->text += text->get_ref<const std::string&>();
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

Status ReadStream(HttpExchange* exchange, TimePoint due, ServeOutcome* outcome) {
  StreamReader reader(outcome, due);
  while (true) {
    EMS_ASSIGN_OR_RETURN(const std::string bytes, exchange->Read());
    const TimePoint now = Clock::System().Now();
    if (bytes.empty()) return reader.Finish(now);
    EMS_RETURN_IF_ERROR(reader.Feed(bytes, now));
  }
}

}  // namespace

Duration ServeOutcome::tpot() const {
  if (completion_tokens < 2) return Duration{0};
  return (e2e - ttft) / static_cast<int64_t>(completion_tokens - 1);
}

ServeOutcome ServeClient::Ask(const ServeRequest& request, TimePoint due) const {
  ServeOutcome outcome;
  const std::string body = BodyOf(model_, request);
  Result<HttpExchange> exchange = HttpExchange::Begin(
      {.address = address_, .method = "POST", .path = "/v1/completions", .body = body},
      Deadline::After(timeout_));
  if (!exchange.ok()) {
    outcome.status = exchange.status();
  } else if (exchange->status() != 200) {
    outcome.status = RefusalOf(&*exchange);
  } else {
    outcome.status = ReadStream(&*exchange, due, &outcome);
  }
  return outcome;
}

Result<std::string> ServedModel(const std::string& address, Duration timeout) {
  EMS_ASSIGN_OR_RETURN(
      HttpExchange exchange,
      HttpExchange::Begin({.address = address, .path = "/v1/models"}, Deadline::After(timeout)));
  if (exchange.status() != 200) return RefusalOf(&exchange);
  EMS_ASSIGN_OR_RETURN(const std::string body, exchange.ReadAll(kAnswerBytesMax));
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("data") && json["data"].is_array() &&
      !json["data"].empty() && json["data"][0].is_object()) {
    const auto id = json["data"][0].find("id");
    if (id != json["data"][0].end() && id->is_string()) return id->get<std::string>();
  }
  return Error(StatusCode::kInternal, "{} names no model: {}", address, Printable(body));
}

}  // namespace ems::bench
