#include "fabric/http/http_endpoint.h"

#include <map>
#include <utility>

namespace ems::fabric {
namespace {

constexpr Duration kPatience = std::chrono::seconds(2);

// By method and path.
using Pages =
    std::map<std::pair<std::string, std::string>, std::function<HttpReply(const HttpRequest&)>>;

HttpReply Text(int status, std::string body) {
  return {.status = status, .content_type = "text/plain", .headers = {}, .body = std::move(body)};
}

HttpReply Answer(const Status& status, int otherwise) {
  return status.ok() ? Text(200, "ok\n") : Text(otherwise, ToString(status) + "\n");
}

HttpServerOptions ServerOptions(const std::string& listen) {
  HttpServerOptions options{.listen = listen, .connections_max = 64, .keep_alive = false};
  options.limits = {.head_bytes_max = 8 * kKiB, .body_bytes_max = 8 * kKiB};
  options.head_timeout = options.body_timeout = options.write_timeout = kPatience;
  return options;
}

}  // namespace

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const std::string& listen,
                                                          const MetricsRegistry* metrics,
                                                          std::function<Status()> healthy,
                                                          std::function<Status()> ready,
                                                          std::function<void()> before_render,
                                                          const std::vector<PostPage>& posts) {
  Pages pages;
  pages[{"GET", "/metrics"}] = [metrics, before = std::move(before_render)](const HttpRequest&) {
    if (before) before();
    HttpReply reply = Text(200, metrics->Render());
    reply.content_type += "; version=0.0.4";
    return reply;
  };
  pages[{"GET", "/healthz"}] = [check = std::move(healthy)](const HttpRequest&) {
    return Answer(check(), 503);
  };
  pages[{"GET", "/readyz"}] = [check = std::move(ready)](const HttpRequest&) {
    return Answer(check(), 503);
  };
  for (const PostPage& page : posts) {
    pages[{"POST", page.path}] = [take = page.take](const HttpRequest& request) {
      return Answer(take(request.body), 400);
    };
  }
  EMS_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpServer> server,
      HttpServer::Start(ServerOptions(listen), [pages = std::move(pages)](const auto& exchange) {
        const HttpRequest& request = exchange->request();
        const auto page =
            pages.find({request.method == "HEAD" ? "GET" : request.method, request.path});
        exchange->Reply(page == pages.end() ? Text(404, "") : page->second(request));
      }));
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(server)));
}

}  // namespace ems::fabric
