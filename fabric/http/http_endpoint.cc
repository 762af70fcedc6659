#include "fabric/http/http_endpoint.h"

#include <map>
#include <utility>

#include "common/process_metrics.h"

namespace ems::fabric {
namespace {

constexpr Duration kPatience = std::chrono::seconds(2);

// By method and path.
using Pages = std::map<std::pair<std::string, std::string>, HttpHandler>;

HttpReply Text(int status, std::string body) {
  return {.status = status, .content_type = "text/plain", .headers = {}, .body = std::move(body)};
}

// A page that is answered at once.
HttpHandler AtOnce(std::function<HttpReply(const HttpRequest&)> page) {
  return [page = std::move(page)](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Reply(page(exchange->request()));
  };
}

HttpReply Answer(const Status& status, int otherwise) {
  return status.ok() ? Text(200, "ok\n") : Text(otherwise, ToString(status) + "\n");
}

HttpServerOptions ServerOptions(const std::string& listen) {
  HttpServerOptions options{.listen = listen, .connections_max = 64, .keep_alive = false};
  options.unsent_bytes_max = 4 * kMiB;
  options.limits = {.head_bytes_max = 8 * kKiB, .body_bytes_max = 8 * kKiB};
  options.head_timeout = options.body_timeout = options.write_timeout = kPatience;
  return options;
}

}  // namespace

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const std::string& listen, const MetricsRegistry* metrics, std::function<Status()> healthy,
    std::function<Status()> ready, std::function<void()> before_render,
    const std::vector<PostPage>& posts, const std::vector<GetPage>& gets) {
  Pages pages;
  const auto render = [metrics, before = std::move(before_render)](const HttpRequest&) {
    if (before) before();
    HttpReply reply = Text(200, metrics->Render());
    AppendProcessMetrics(&reply.body);
    reply.content_type += "; version=0.0.4";
    return reply;
  };
  pages[{"GET", "/metrics"}] = AtOnce(render);
  pages[{"GET", "/healthz"}] =
      AtOnce([check = std::move(healthy)](const HttpRequest&) { return Answer(check(), 503); });
  pages[{"GET", "/readyz"}] =
      AtOnce([check = std::move(ready)](const HttpRequest&) { return Answer(check(), 503); });
  for (const PostPage& page : posts) {
    pages[{"POST", page.path}] = AtOnce(
        [take = page.take](const HttpRequest& request) { return Answer(take(request.body), 400); });
  }
  for (const GetPage& page : gets) pages[{"GET", page.path}] = page.show;
  EMS_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpServer> server,
      HttpServer::Start(ServerOptions(listen), [pages = std::move(pages)](const auto& exchange) {
        const HttpRequest& request = exchange->request();
        const auto page =
            pages.find({request.method == "HEAD" ? "GET" : request.method, request.path});
        if (page == pages.end()) {
          exchange->Reply(Text(404, ""));
        } else {
          page->second(exchange);
        }
      }));
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(server)));
}

}  // namespace ems::fabric
