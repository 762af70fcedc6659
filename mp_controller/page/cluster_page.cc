#include "mp_controller/page/cluster_page.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "mp_controller/page/page_html.h"

namespace ems::controller {
namespace {

using fabric::HttpHeaders;
using fabric::HttpReply;

// What a browser must not do with an answer, whatever is in it.
HttpHeaders Headers() {
  return {{"Cache-Control", "no-store"},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Resource-Policy", "same-origin"}};
}

HttpReply JsonReply(int status, const std::string& json) {
  return {.status = status, .headers = Headers(), .body = json + "\n"};
}

std::string ErrorJson(const Status& why) {
  const nlohmann::json json{{"error", ToString(why)}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpReply Unavailable(const Status& why) { return JsonReply(503, ErrorJson(why)); }

Status Stopping() { return Error(StatusCode::kUnavailable, "the controller is stopping"); }

// The head of a stream, and its first event. Who loses it comes again after a second.
HttpReply Opening(const std::string& event) {
  return {
      .content_type = "text/event-stream", .headers = Headers(), .body = "retry: 1000\n\n" + event};
}

// A browser asks its user, and shows the password with each later request.
HttpReply AskForPassword() {
  const Status why = Error(StatusCode::kUnauthenticated,
                           "user ems and the password of page_password_file are asked for");
  HttpReply reply = JsonReply(401, ErrorJson(why));
  reply.headers.emplace_back("WWW-Authenticate", R"(Basic realm="EMS cluster", charset="UTF-8")");
  return reply;
}

HttpReply HtmlPage() {
  HttpReply reply{.content_type = "text/html; charset=utf-8",
                  .headers = Headers(),
                  .body = std::string(kPageHtml)};
  reply.headers.emplace_back("Content-Security-Policy", kPagePolicy);
  reply.headers.emplace_back("X-Frame-Options", "DENY");
  return reply;
}

}  // namespace

ClusterPage::ClusterPage(std::function<Result<std::string>()> state, Duration every,
                         std::optional<PagePassword> password)
    : state_(std::move(state)),
      every_(every),
      password_(password),
      thread_("ems-page", [this] { Run(); }) {}

ClusterPage::~ClusterPage() { Close(); }

std::vector<fabric::HttpEndpoint::GetPage> ClusterPage::pages() {
  const auto page = [](const Exchange& exchange) { exchange->Reply(HtmlPage()); };
  const auto state = [this](const Exchange& exchange) { ShowState(exchange); };
  const auto events = [this](const Exchange& exchange) { Follow(exchange); };
  return {{.path = "/", .show = Locked(page)},
          {.path = "/state", .show = Locked(state)},
          {.path = "/events", .show = Locked(events)}};
}

fabric::HttpHandler ClusterPage::Locked(fabric::HttpHandler show) const {
  if (!password_) return show;
  return [this, show = std::move(show)](const Exchange& exchange) {
    if (password_->Allows(exchange->request())) {
      show(exchange);
    } else {
      exchange->Reply(AskForPassword());
    }
  };
}

void ClusterPage::Close() {
  {
    auto shared = shared_.Lock();
    shared->closed = true;
  }
  changed_.notify_all();
  thread_.Join();
}

void ClusterPage::ShowState(const Exchange& exchange) {
  std::optional<HttpReply> reply;
  {
    auto shared = shared_.Lock();
    const bool fresh = shared->asked_at && Clock::System().Now() - *shared->asked_at < every_;
    if (shared->closed) {
      reply = Unavailable(Stopping());
    } else if (fresh && !shared->state.empty()) {
      reply = JsonReply(200, shared->state);
    } else if (shared->waiting.size() >= kWaitingMax) {
      reply = Unavailable(Error(StatusCode::kResourceExhausted,
                                "{} wait for the state, and more are not served: ask again later",
                                kWaitingMax));
    } else {
      shared->waiting.push_back(exchange);
    }
  }
  changed_.notify_all();
  if (reply) {
    exchange->Reply(*reply);
  } else {
    ForgetWhenGone(exchange);
  }
}

void ClusterPage::Follow(const Exchange& exchange) {
  if (exchange->request().method == "HEAD") {
    exchange->Reply(Opening(""));
    return;
  }
  Status refused;
  {
    auto shared = shared_.Lock();
    if (shared->closed) {
      refused = Stopping();
    } else if (shared->opening.size() + shared->streams.size() >= kStreamsMax) {
      refused = Error(StatusCode::kResourceExhausted,
                      "{} streams are open, and more are not served: close one, or ask /state",
                      kStreamsMax);
    } else {
      shared->opening.push_back(exchange);
    }
  }
  changed_.notify_all();
  if (refused.ok()) {
    ForgetWhenGone(exchange);
  } else {
    exchange->Reply(Unavailable(refused));
  }
}

void ClusterPage::ForgetWhenGone(const Exchange& exchange) {
  exchange->OnGone([this, gone = exchange.get()] {
    auto shared = shared_.Lock();
    for (Clients* clients : {&shared->waiting, &shared->opening, &shared->streams}) {
      std::erase_if(*clients, [gone](const Exchange& one) { return one.get() == gone; });
    }
  });
}

void ClusterPage::Run() {
  while (true) {
    {
      auto shared = shared_.Lock();
      shared.Wait(changed_, [](const Shared& s) { return s.closed || s.is_looked_at(); });
      const TimePoint now = Clock::System().Now();
      const Duration pause = shared->asked_at ? *shared->asked_at + every_ - now : Duration::zero();
      shared.WaitFor(changed_, pause, [](const Shared& s) { return s.closed; });
      if (shared->closed) break;
    }
    const TimePoint now = Clock::System().Now();
    Tell(state_(), now);
  }
  EndAll();
}

void ClusterPage::Tell(const Result<std::string>& state, TimePoint asked_at) {
  const std::string event = state.ok()
                                ? "data: " + *state + "\n\n"
                                : "event: trouble\ndata: " + ErrorJson(state.status()) + "\n\n";
  const HttpReply reply = state.ok() ? JsonReply(200, *state) : Unavailable(state.status());
  Clients waiting, opening, streams;
  {
    auto shared = shared_.Lock();
    shared->asked_at = asked_at;
    shared->state = state.ok() ? *state : "";
    waiting.swap(shared->waiting);
    opening = shared->opening;
    streams = shared->streams;
  }
  for (const Exchange& exchange : waiting) exchange->Reply(reply);
  for (const Exchange& exchange : streams) {
    // Who still takes the last event gets a later one, of then.
    if (exchange->unsent_bytes() == 0) (void)exchange->Write(event);
  }
  for (const Exchange& exchange : opening) (void)exchange->StartStream(Opening(event));
  // All counted meanwhile, so none was let in beyond the bound; those that went are not there.
  auto shared = shared_.Lock();
  for (const Exchange& exchange : opening) {
    if (std::erase(shared->opening, exchange) > 0) shared->streams.push_back(exchange);
  }
}

void ClusterPage::EndAll() {
  Clients unanswered, streams;
  {
    auto shared = shared_.Lock();
    unanswered.swap(shared->waiting);
    unanswered.insert(unanswered.end(), shared->opening.begin(), shared->opening.end());
    shared->opening.clear();
    streams.swap(shared->streams);
  }
  for (const Exchange& exchange : unanswered) exchange->Reply(Unavailable(Stopping()));
  for (const Exchange& exchange : streams) exchange->Finish();
}

}  // namespace ems::controller
