#include "pdc/api/api_server.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "fabric/http/http_server.h"
#include "pdc/api/api_error.h"
#include "pdc/api/api_metrics.h"
#include "pdc/api/chat_template.h"
#include "pdc/api/completion_job.h"
#include "pdc/api/completion_reply.h"
#include "pdc/api/completion_request.h"
#include "pdc/api/page/page_html.h"

namespace ems::pdc::api {
namespace {

using fabric::HttpExchange;
using fabric::HttpReply;
using fabric::HttpRequest;
using Json = nlohmann::ordered_json;
using ExchangePtr = std::shared_ptr<HttpExchange>;

constexpr std::string_view kModelsPath = "/v1/models/";
constexpr uint64_t kTextTokensDefault = 16;  // of OpenAI's completions
// The HTTP server's backstop behind deadlines.
constexpr Duration kAnswerGrace = std::chrono::seconds(30);

std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr ==
            text.data() + i + 3) {
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

Json ModelJson(const ModelInfo& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created_s},
          {"owned_by", model.owned_by},
          {"max_model_len", model.context_tokens_max}};
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

ApiError UnknownModel(const std::string& name) {
  return {.status = 404,
          .message = "the model '" + name + "' does not exist; /v1/models lists those that do",
          .param = "model",
          .code = "model_not_found"};
}

// "application/json; charset=utf-8" is. Nothing else: pages of other sites may send the rest
// unasked.
bool IsJson(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  for (char& c : type) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  while (type.ends_with(' ')) type.pop_back();
  return type == "application/json";
}

ApiError TooLong(const std::string& param, const std::string& message) {
  return BadParam(param, message, "context_length_exceeded");
}

}  // namespace

struct ApiServer::Impl {
  // The state that outlives the server, for generations whose last events come after it.
  struct Shared {
    Shared(MetricsRegistry* registry, const std::vector<ModelInfo>& models)
        : metrics(registry, models) {}
    ApiMetrics metrics;
    std::atomic<uint32_t> in_hand{0};  // generations
  };
  struct Route {
    std::string path;
    std::string methods;  // for Allow
    void (Impl::*serve)(const ExchangePtr& exchange);
  };

  ApiOptions options;
  Generator* generator = nullptr;
  MetricsRegistry* registry = nullptr;
  std::shared_ptr<Shared> shared;
  Guarded<std::mt19937_64> random{std::in_place, std::random_device{}()};
  std::vector<Route> routes;
  std::unique_ptr<fabric::HttpServer> server;  // last: it uses all of the above

  void Serve(const ExchangePtr& exchange);
  void ServePage(const ExchangePtr& exchange);
  void ServeHealth(const ExchangePtr& exchange);
  void ServeReady(const ExchangePtr& exchange);
  void ServeMetrics(const ExchangePtr& exchange);
  void ServeModels(const ExchangePtr& exchange);
  void ServeModel(const ExchangePtr& exchange);
  void ServeText(const ExchangePtr& exchange) { Complete(exchange, CompletionKind::kText); }
  void ServeChat(const ExchangePtr& exchange) { Complete(exchange, CompletionKind::kChat); }
  void Complete(const ExchangePtr& exchange, CompletionKind kind);
  void Answer(const ExchangePtr& exchange, const HttpReply& reply) const;
  void Refuse(const ExchangePtr& exchange, const ApiError& error) const;

  const ModelInfo* FindModel(const std::string& name) const;
  // The request with its room in the context settled.
  std::variant<GenerateRequest, ApiError> Plan(const CompletionRequest& completion,
                                               const ModelInfo& model) const;
  std::variant<Deadline, ApiError> DeadlineOf(const HttpRequest& request) const;
  std::string NewId(CompletionKind kind);
  // The route's path for metrics: bounded, whatever clients ask for.
  const Route* FindRoute(const HttpRequest& request) const;
};

const ApiServer::Impl::Route* ApiServer::Impl::FindRoute(const HttpRequest& request) const {
  for (const Route& route : routes) {
    if (request.path == route.path) return &route;
    if (route.path == kModelsPath && request.path.starts_with(kModelsPath)) return &route;
  }
  return nullptr;
}

void ApiServer::Impl::Answer(const ExchangePtr& exchange, const HttpReply& reply) const {
  const Route* const route = FindRoute(exchange->request());
  shared->metrics.OnAnswer(route == nullptr ? "other" : route->path, reply.status);
  exchange->Reply(reply);
}

void ApiServer::Impl::Refuse(const ExchangePtr& exchange, const ApiError& error) const {
  Answer(exchange, ErrorReply(error));
}

void ApiServer::Impl::Serve(const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const Route* const route = FindRoute(request);
  if (route == nullptr) {
    return Refuse(
        exchange,
        {.status = 404, .message = "there is no " + request.path + " here", .code = "unknown_url"});
  }
  if (request.method == "POST"
          ? route->methods == "POST"
          : route->methods != "POST" && (request.method == "GET" || request.method == "HEAD")) {
    return (this->*route->serve)(exchange);
  }
  HttpReply reply =
      ErrorReply({.status = 405,
                  .message = route->path + " takes " + route->methods + ", not " + request.method,
                  .code = "method_not_allowed"});
  reply.headers.emplace_back("Allow", route->methods);
  Answer(exchange, reply);
}

void ApiServer::Impl::ServePage(const ExchangePtr& exchange) {
  Answer(exchange, {.content_type = "text/html; charset=utf-8",
                    .headers = {{"Cache-Control", "no-store"},
                                {"X-Content-Type-Options", "nosniff"},
                                {"Referrer-Policy", "no-referrer"},
                                {"Content-Security-Policy", std::string(kPagePolicy)},
                                {"X-Frame-Options", "DENY"}},
                    .body = std::string(kPageHtml)});
}

void ApiServer::Impl::ServeHealth(const ExchangePtr& exchange) {
  Answer(exchange, {.content_type = "text/plain", .body = "ok\n"});
}

void ApiServer::Impl::ServeReady(const ExchangePtr& exchange) {
  const Status ready = generator->Ready();
  Answer(exchange, {.status = ready.ok() ? 200 : 503,
                    .content_type = "text/plain",
                    .body = ready.ok() ? "ok\n" : ToString(ready) + "\n"});
}

void ApiServer::Impl::ServeMetrics(const ExchangePtr& exchange) {
  if (options.before_metrics) options.before_metrics();
  Answer(exchange, {.content_type = "text/plain; version=0.0.4", .body = registry->Render()});
}

void ApiServer::Impl::ServeModels(const ExchangePtr& exchange) {
  Json list = Json::array();
  for (const ModelInfo& model : generator->models()) list.push_back(ModelJson(model));
  Answer(exchange, {.body = Dump({{"object", "list"}, {"data", list}})});
}

void ApiServer::Impl::ServeModel(const ExchangePtr& exchange) {
  const std::string name =
      PercentDecoded(std::string_view(exchange->request().path).substr(kModelsPath.size()));
  const ModelInfo* const model = FindModel(name);
  if (model == nullptr) return Refuse(exchange, UnknownModel(name));
  Answer(exchange, {.body = Dump(ModelJson(*model))});
}

const ModelInfo* ApiServer::Impl::FindModel(const std::string& name) const {
  for (const ModelInfo& model : generator->models()) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

std::string ApiServer::Impl::NewId(CompletionKind kind) {
  auto generate = random.Lock();
  const uint64_t first = (*generate)(), second = (*generate)();
  return fmt::format("{}-{:016x}{:016x}", kind == CompletionKind::kChat ? "chatcmpl" : "cmpl",
                     first, second);
}

std::variant<Deadline, ApiError> ApiServer::Impl::DeadlineOf(const HttpRequest& request) const {
  const std::string_view text = request.Header("x-request-timeout-ms");
  if (text.empty()) return Deadline::After(options.request_timeout);
  uint64_t ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(options.request_timeout);
  if (error != std::errc() || end != text.data() + text.size() || ms == 0 ||
      ms > static_cast<uint64_t>(most.count())) {
    return BadParam(
        "X-Request-Timeout-Ms",
        fmt::format("the header X-Request-Timeout-Ms has to be from 1 to {}", most.count()));
  }
  return Deadline::After(std::chrono::milliseconds(ms));
}

std::variant<GenerateRequest, ApiError> ApiServer::Impl::Plan(const CompletionRequest& completion,
                                                              const ModelInfo& model) const {
  const bool chat = completion.kind == CompletionKind::kChat;
  const std::string param = chat ? "messages" : "prompt";
  for (const uint32_t token : completion.generate.tokens) {
    if (token >= model.vocabulary) {
      return BadParam(
          param, fmt::format("token {} is not below the vocabulary's {}", token, model.vocabulary));
    }
  }
  const uint64_t prompt_tokens = completion.generate.text.empty()
                                     ? completion.generate.tokens.size()
                                     : generator->CountTokens(model, completion.generate.text);
  const uint64_t context = model.context_tokens_max;
  if (options.prompt_tokens_max != 0 && prompt_tokens > options.prompt_tokens_max) {
    return TooLong(param, fmt::format("the prompt has {} tokens, {} are allowed", prompt_tokens,
                                      options.prompt_tokens_max));
  }
  if (prompt_tokens >= context) {
    return TooLong(param, fmt::format("the prompt has {} tokens, the model's context holds {} "
                                      "with the completion",
                                      prompt_tokens, context));
  }
  uint64_t room = context - prompt_tokens;
  if (options.completion_tokens_max != 0) room = std::min(room, options.completion_tokens_max);
  const uint64_t wanted =
      completion.tokens_max.value_or(chat ? room : std::min(room, kTextTokensDefault));
  if (wanted > room) {
    return TooLong("max_tokens",
                   fmt::format("{} tokens are asked for, after a prompt of {} there is room for {}",
                               wanted, prompt_tokens, room));
  }
  GenerateRequest request = completion.generate;
  request.tokens_max = wanted;
  if (chat && !request.ignore_eos) request.stop.emplace_back(1, kEndOfTurnByte);
  return request;
}

void ApiServer::Impl::Complete(const ExchangePtr& exchange, CompletionKind kind) {
  const HttpRequest& http = exchange->request();
  if (!IsJson(http.Header("content-type"))) {
    return Refuse(exchange, {.status = 415,
                             .message = "Content-Type has to be application/json",
                             .code = "unsupported_media_type"});
  }
  const auto parsed = ParseCompletionRequest(kind, http.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return Refuse(exchange, *error);
  const CompletionRequest& completion = std::get<CompletionRequest>(parsed);
  const ModelInfo* const model = FindModel(completion.generate.model);
  if (model == nullptr) return Refuse(exchange, UnknownModel(completion.generate.model));
  const auto deadline = DeadlineOf(http);
  if (const auto* error = std::get_if<ApiError>(&deadline)) return Refuse(exchange, *error);
  auto planned = Plan(completion, *model);
  if (const auto* error = std::get_if<ApiError>(&planned)) return Refuse(exchange, *error);
  GenerateRequest& request = std::get<GenerateRequest>(planned);
  request.id = NewId(kind);
  request.deadline = std::get<Deadline>(deadline);

  if (shared->in_hand.fetch_add(1, std::memory_order_relaxed) >= options.requests_max) {
    shared->in_hand.fetch_sub(1, std::memory_order_relaxed);
    return Refuse(exchange, ErrorOf(Error(StatusCode::kResourceExhausted,
                                          "{} requests are in hand already; try again later",
                                          options.requests_max)));
  }
  const std::string path = FindRoute(http)->path;
  auto job = std::make_shared<CompletionJob>(CompletionJob::Plan{
      .exchange = exchange,
      .reply = CompletionReply(kind, request.id, model->name, std::time(nullptr),
                               completion.include_usage),
      .stream = completion.stream,
      .stop = request.stop,
      .metrics = &shared->metrics.model(model->name),
      .on_release = [shared = shared] { shared->in_hand.fetch_sub(1, std::memory_order_relaxed); },
      .on_answer = [shared = shared, path](int status) { shared->metrics.OnAnswer(path, status); },
  });
  job->Run(generator, std::move(request));
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiServer::~ApiServer() { Stop(Duration::zero()); }

Result<std::unique_ptr<ApiServer>> ApiServer::Start(const ApiOptions& options, Generator* generator,
                                                    MetricsRegistry* metrics) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->generator = generator;
  impl->registry = metrics;
  impl->shared = std::make_shared<Impl::Shared>(metrics, generator->models());
  impl->routes = {{"/", "GET, HEAD", &Impl::ServePage},
                  {"/v1/completions", "POST", &Impl::ServeText},
                  {"/v1/chat/completions", "POST", &Impl::ServeChat},
                  {"/v1/models", "GET, HEAD", &Impl::ServeModels},
                  {std::string(kModelsPath), "GET, HEAD", &Impl::ServeModel},
                  {"/healthz", "GET, HEAD", &Impl::ServeHealth},
                  {"/readyz", "GET, HEAD", &Impl::ServeReady},
                  {"/metrics", "GET, HEAD", &Impl::ServeMetrics}};
  fabric::HttpServerOptions http{.listen = options.listen,
                                 .io_threads = options.io_threads,
                                 .connections_max = options.connections_max};
  http.limits.body_bytes_max = options.body_bytes_max;
  http.answer_timeout = options.request_timeout + kAnswerGrace;
  http.refusal = [](int status, const std::string& why) {
    return ErrorReply({.status = status, .message = why});
  };
  EMS_ASSIGN_OR_RETURN(
      impl->server,
      fabric::HttpServer::Start(
          http, [one = impl.get()](const ExchangePtr& exchange) { one->Serve(exchange); },
          impl->shared->metrics.http()));
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

const std::string& ApiServer::address() const { return impl_->server->address(); }

void ApiServer::Stop(Duration patience) { impl_->server->Stop(patience); }

}  // namespace ems::pdc::api
