// A service that speaks S3, with its objects in memory: `storage ADDRESS BUCKET KEY SECRET`. Requests that are not signed
// with the key are refused, and so is what does not have the sum that it says.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
)

func main() {
	address, bucket, key, secret := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	backend := s3mem.New()
	if err := backend.CreateBucket(context.Background(), bucket); err != nil {
		log.Fatal(err)
	}
	service := gofakes3.New(backend, gofakes3.WithV4Auth(map[string]string{key: secret}))
	log.Fatal(http.ListenAndServe(address, service.Server()))
}
